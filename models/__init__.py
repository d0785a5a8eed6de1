"""Models that the project trains and ships."""
