"""The public face of xdb."""
