"""Reserved starts, and the forecasts of free capacity and free quota that they rest on."""
