"""From a job and what is seen of it to what is to be done: observe, decide, carry out."""
