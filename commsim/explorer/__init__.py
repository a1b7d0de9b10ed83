"""A page in the browser, served from this machine alone, on which every question is asked by moving a control."""
