mod pages;
mod reports;
mod sockets;
