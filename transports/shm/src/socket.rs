//! Unix sockets with names that are no files, and descriptors that travel over them.

use crate::offer::NAME_BYTES;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    ffi::OsString,
    io::{self, Read},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
};

/// One byte on a lane's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// First: our segment and our bell come with it.
    Memory = b'm' as isize,
    /// The peer's segment is mapped.
    Ready = b'r' as isize,
    /// A region of ours comes with it, which records may refer to from now on.
    Region = b'b' as isize,
    /// No record refers to a region any more; its number follows, in four bytes.
    Gone = b'f' as isize,
    /// Last: what was sent is all in the ring.
    Goodbye = b'g' as isize,
    /// Last: the lane was ended.
    Abort = b'a' as isize,
}

/// What a socket gave.
pub(crate) enum Heard {
    Word(Word, Vec<OwnedFd>),
    /// No word of ours.
    Noise(u8),
    Nothing,
    /// The end of the stream, or an error.
    End(String),
}

fn address(name: &[u8; NAME_BYTES]) -> io::Result<SockAddr> {
    let mut text = OsString::from("\0rondel-");
    for byte in name {
        text.push(format!("{byte:02x}"));
    }
    SockAddr::unix(text)
}

/// A nonblocking listener in the network namespace of this thread.
pub(crate) fn listen(name: &[u8; NAME_BYTES]) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address(name)?)?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// A nonblocking connection, which is there at once or (`WouldBlock`) not now.
pub(crate) fn dial(name: &[u8; NAME_BYTES]) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&address(name)?)?;
    Ok(socket.into())
}

/// The process at the other end, if this one can see it.
pub(crate) fn process_of(stream: &UnixStream) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` has `len` writable bytes.
    let answer = unsafe {
        let to = (&raw mut credentials).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len)
    };
    (answer == 0 && credentials.pid > 0).then_some(credentials.pid as u32)
}

/// Room for the control message that carries two descriptors, aligned as it must be.
const CONTROL: usize = 64;
#[repr(align(8))]
struct Control([u8; CONTROL]);

const FDS: usize = 2;

/// Says a word, with descriptors. `WouldBlock`: not now.
pub(crate) fn say(stream: &UnixStream, word: Word, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    say_bytes(stream, &[word as isize as u8], fds)
}

/// Says that a region is gone.
pub(crate) fn say_gone(stream: &UnixStream, number: u32) -> io::Result<()> {
    let [a, b, c, d] = number.to_le_bytes();
    say_bytes(stream, &[Word::Gone as isize as u8, a, b, c, d], &[])
}

/// All of the few bytes, or none.
pub(crate) fn say_bytes(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL]);
    // SAFETY: an all-zero header is a valid one; every pointer in it is to memory of this frame, the descriptors fit the
    // control buffer, and CMSG_* reach no further than its length.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            assert!(fds.len() <= FDS, "{} descriptors in one message, at most {FDS}", fds.len());
            let bytes = size_of_val(fds) as libc::c_uint;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(message).cast::<libc::c_int>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
        libc::sendmsg(stream.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(sent) => Err(io::Error::other(format!("only {sent} of {} bytes were taken", bytes.len()))),
        Err(_) => match io::Error::last_os_error() {
            // Too many descriptors of this user are under way: the peers have to take some first.
            error if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            error => Err(error),
        },
    }
}

/// Takes the next word. Descriptors that come with it are closed on exec.
pub(crate) fn hear(stream: &UnixStream) -> Heard {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = Control([0; CONTROL]);
    let mut fds = Vec::new();
    // SAFETY: an all-zero header is a valid one; every pointer in it is to memory of this frame; the kernel sets the
    // lengths that CMSG_* go by; each descriptor that it gives is fresh and ours.
    let read = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL;
        let read =
            libc::recvmsg(stream.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        if read >= 0 {
            let mut message = libc::CMSG_FIRSTHDR(&raw const header);
            while !message.is_null() {
                if ((*message).cmsg_level, (*message).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let bytes = (*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(message).cast::<libc::c_int>();
                    let fd = |index| OwnedFd::from_raw_fd(data.add(index).read_unaligned());
                    fds.extend((0..bytes / size_of::<libc::c_int>()).map(fd));
                }
                message = libc::CMSG_NXTHDR(&raw const header, message);
            }
        }
        read
    };
    match read {
        1 => [Word::Memory, Word::Ready, Word::Region, Word::Gone, Word::Goodbye, Word::Abort]
            .into_iter()
            .find(|&word| word as isize as u8 == byte)
            .map_or(Heard::Noise(byte), |word| Heard::Word(word, fds)),
        0 => Heard::End("it was closed without a goodbye: its process has ended or left the lane".into()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
            error if error.kind() == io::ErrorKind::Interrupted => Heard::Nothing,
            error => Heard::End(error.to_string()),
        },
    }
}

/// The number that follows the word [`Gone`](Word::Gone), which a peer says in one go.
pub(crate) fn hear_number(mut stream: &UnixStream) -> Option<u32> {
    let mut bytes = [0; 4];
    (stream.read(&mut bytes).ok()? == bytes.len()).then(|| u32::from_le_bytes(bytes))
}
