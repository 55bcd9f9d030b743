"""`tilewright audit`: a kernel that somebody has, judged, timed and read, with what to do about it."""
