//! Lanes over TCP sockets.
