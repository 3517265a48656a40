//! Socket options and the raw calls on sockets.

use rondel_transport_api::TransportError;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    net::TcpStream,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
    time::Duration,
};

/// Sets what every socket of a lane has. Buffer sizes are left to the kernel, which tunes them better than a constant.
///
/// `TCP_USER_TIMEOUT` is left alone on purpose: it also ends connections whose peer is alive and merely does not read
/// for a while (a zero window that lasts), which is what a rank looks like that computes. [`silent_for`] tells the two
/// apart.
pub(crate) fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time((silence / 2).max(second))
        .with_interval((silence / 6).max(second))
        .with_retries(3);
    let socket = SockRef::from(stream);
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if stays_on_host(stream) {
        // A congestion control that paces (BBR) looks for the bottleneck of a path that has none. With the plain one two
        // ranks exchange 64 MiB in two thirds of the time. Where it is not allowed, the system's default serves as well.
        if let Err(error) = socket.set_tcp_congestion(b"reno") {
            tracing::debug!(%error, "the default congestion control stays");
        }
    }
    socket.set_tcp_keepalive(&keepalive)
}

/// Whether both ends are this host.
pub(crate) fn stays_on_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip() || peer.ip().is_loopback(),
        _ => false,
    }
}

/// How long the peer's kernel has not answered although it should have; `None` while it answers.
///
/// A peer whose process does not read answers our window probes, ever more rarely since they back off, and leaves out an
/// answer now and then: so the age of the last acknowledgement counts only once a retransmission (older than the current
/// timeout) or a second probe in a row went unanswered. Judge on two looks in a row.
pub(crate) fn silent_for(stream: &TcpStream) -> Option<Duration> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` has `len` writable bytes, and all-zero bytes are a valid `tcp_info`, also if fewer are written.
    let info = unsafe {
        let at = info.as_mut_ptr().cast();
        if libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut len) != 0 {
            return None;
        }
        info.assume_init()
    };
    let age = Duration::from_millis(info.tcpi_last_ack_recv.into());
    let timeout = Duration::from_micros(info.tcpi_rto.into());
    let unanswered = info.tcpi_unacked > 0 && age > timeout + timeout / 8;
    (unanswered || info.tcpi_probes > 1).then_some(age)
}

/// Bytes that the peer's kernel has not acknowledged, our end of the stream included. 0 where the kernel does not say.
pub(crate) fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `TIOCOUTQ` (the socket's SIOCOUTQ) writes one int.
    match unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => bytes,
        _ => 0,
    }
}

/// Makes the coming close of the socket a reset: nothing lingers, the peer knows at once.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "a socket closes without a reset");
    }
}

/// What a nonblocking call on a socket came to.
pub(crate) enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// Nothing can move now.
    Blocked,
}

fn moved(result: isize) -> io::Result<Moved> {
    if result >= 0 {
        return Ok(Moved::Bytes(result as usize));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Moved::Blocked),
        _ => Err(error),
    }
}

/// One `recv`.
///
/// # Safety
/// `at` has `len` writable bytes.
pub(crate) unsafe fn recv(fd: RawFd, at: *mut u8, len: usize) -> io::Result<Moved> {
    // SAFETY: the caller's promise.
    moved(unsafe { libc::recv(fd, at.cast(), len, libc::MSG_DONTWAIT) })
}

/// One `readv`.
///
/// # Safety
/// Each entry names writable bytes.
pub(crate) unsafe fn readv(fd: RawFd, parts: &[libc::iovec]) -> io::Result<Moved> {
    // SAFETY: the caller's promise; the socket is nonblocking.
    moved(unsafe { libc::readv(fd, parts.as_ptr(), parts.len() as libc::c_int) })
}

/// One `send`.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<Moved> {
    // SAFETY: a slice is readable.
    moved(unsafe {
        libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
}

/// One `sendmsg`.
///
/// # Safety
/// Each entry names readable bytes.
pub(crate) unsafe fn sendmsg(fd: RawFd, parts: &mut [libc::iovec]) -> io::Result<Moved> {
    // SAFETY: the caller's promise; an all-zero `msghdr` is valid, and its other fields stay empty.
    moved(unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    })
}

/// An error of the operating system, with what was tried.
pub(crate) fn io_error(what: impl Into<String>, source: io::Error) -> TransportError {
    TransportError::Io { what: what.into(), source: Arc::new(source) }
}
