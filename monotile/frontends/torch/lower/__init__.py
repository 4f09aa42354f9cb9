"""What each ATen operator means."""
