"""What samples are collected from: each module reads one sort of source and gives its series as rows."""
