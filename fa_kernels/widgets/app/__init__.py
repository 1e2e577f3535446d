"""The app: explorer, stepper and story in a speaker's full window, served by Voila (`make app`)."""
