"""Media of rows: pictures, videos and sounds, from data cells to model input."""
