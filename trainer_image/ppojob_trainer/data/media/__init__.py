"""Media of rows: images, videos and audios, from data cells to model input."""
