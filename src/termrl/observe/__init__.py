"""What a run shows while it lasts and leaves behind: console, metric files, the table, the picture."""
