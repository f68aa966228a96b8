"""What rows show: pictures, videos and sounds, from their cells to what models take."""
