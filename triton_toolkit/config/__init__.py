"""config.pbtxt: the protobuf, rendering through templates, parsing, and the server's rules."""
