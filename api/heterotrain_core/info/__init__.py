"""Information management without I/O: values, operators, expressions, and the machine that applies processing rules."""
