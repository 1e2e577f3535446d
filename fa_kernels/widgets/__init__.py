"""Widgets, one module per interactive idea. ipywidgets and anywidget load with the module."""
