"""Pure functions from data to plotly figures. Plotly itself loads only where a figure is made."""
