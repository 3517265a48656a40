//! Descriptors and credentials over Unix sockets.

use std::{
    io, mem,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    ptr,
};

/// Room for the control message of one descriptor (the kernel may fit two).
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Runs `call` on a message of one byte with the given control memory.
fn with_message<T>(control: &mut Control, call: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut byte = 0u8;
    let mut data = libc::iovec { iov_base: ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    // SAFETY: all zero is an empty message header.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    call(&mut message)
}

/// Sends one byte and the descriptor. Does not block.
pub(super) fn send_descriptor(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut control = Control([0; 24]);
    let sent = with_message(&mut control, |message| {
        // SAFETY: the control memory is aligned for a header and large enough for it and one descriptor, as the length in
        // the message says; so the first header and its data are inside.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
        }
        // SAFETY: everything that the message points to is alive.
        unsafe { libc::sendmsg(stream.as_raw_fd(), message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
    });
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives one byte and exactly one descriptor. Blocks as long as the stream's read timeout says.
pub(super) fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut control = Control([0; 24]);
    let (got, mut descriptors) = with_message(&mut control, |message| {
        // SAFETY: everything that the message points to is alive and writable for the lengths in it.
        let got = unsafe { libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        // SAFETY: the kernel filled in the message.
        (got, if got > 0 { unsafe { passed(message) } } else { Vec::new() })
    });
    match (got, descriptors.pop(), descriptors.is_empty()) {
        (..0, ..) => Err(io::Error::last_os_error()),
        (0, ..) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it hung up without an answer, as it does on other users than its own",
        )),
        (_, Some(descriptor), true) => Ok(descriptor),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it did not answer with exactly one descriptor")),
    }
}

/// All descriptors of a message, owned.
///
/// # Safety
/// The message was filled in by `recvmsg`, and this is the first look at it.
unsafe fn passed(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel's headers lie inside the control memory, with as much data as they say; the descriptors in them
    // are new and nobody's yet.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            descriptors.extend(
                (0..bytes / size_of::<RawFd>())
                    .map(|index| OwnedFd::from_raw_fd(data.add(index).read_unaligned())),
            );
        }
    }
    descriptors
}

/// Who is at the other end: of an accepted connection, who connected; of one's own, who listened.
pub(super) fn credentials(stream: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `peer`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            ptr::from_mut(&mut peer).cast(),
            &mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(peer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::{Read, Write},
        os::fd::AsFd,
    };

    #[test]
    fn a_descriptor_crosses() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut reader, mut writer) = io::pipe().unwrap();
        send_descriptor(&near, reader.as_fd()).unwrap();
        let mut received = File::from(receive_descriptor(&far).unwrap());
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the byte was read through the other descriptor");
        assert_eq!(credentials(far.as_fd()).unwrap().pid as u32, std::process::id());
    }

    #[test]
    fn what_is_no_descriptor_is_an_error() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"x").unwrap();
        assert_eq!(receive_descriptor(&far).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(receive_descriptor(&far).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
