//! This process and its neighbours on the same host: who they are, whether they run, how they ended.

use super::wire::{ProcessId, Sight};
use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

/// Equal for processes that share a kernel and a network namespace, and for no others.
pub(crate) fn host_id() -> [u8; 16] {
    let mut id = [0; 16];
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = boot.bytes().filter_map(|c| (c as char).to_digit(16).map(|d| d as u8)).collect();
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        *byte = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
    }
    let namespace = namespace_id("net").to_le_bytes();
    id.iter_mut().zip(namespace).for_each(|(byte, other)| *byte ^= other);
    id
}

/// The host's name, for people.
pub(crate) fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown host".into(), |s| s.trim().to_owned())
}

/// This process as its neighbours can find it.
pub(crate) fn own_id() -> ProcessId {
    ProcessId {
        namespace: namespace_id("pid"),
        started: Stat::read(std::process::id()).map_or(0, |stat| stat.started),
    }
}

fn namespace_id(kind: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |metadata| metadata.ino())
}

/// What `/proc/<pid>/stat` says.
struct Stat {
    state: u8,
    started: u64,
    /// As `wait` reports it; known for the dead that nobody has waited for yet.
    exit: Option<i32>,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in parentheses, and may hold anything.
        let rest = text.get(text.rfind(')')? + 2..)?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            started: fields.get(19)?.parse().ok()?,
            exit: fields.get(49).and_then(|field| field.parse().ok()),
        })
    }
}

/// Looks at a process of this host.
pub(crate) fn look(pid: u32, id: ProcessId) -> Sight {
    if id.namespace == 0 || id.namespace != namespace_id("pid") {
        return Sight::Hidden;
    }
    match Stat::read(pid) {
        Some(stat) if stat.started != id.started || matches!(stat.state, b'Z' | b'X') => Sight::Gone,
        Some(stat) if matches!(stat.state, b'T' | b't') => Sight::Stopped,
        Some(_) => Sight::Running,
        None => Sight::Gone,
    }
}

/// A descriptor of another process that becomes readable when the process ends.
#[derive(Debug)]
pub(crate) struct Pidfd {
    pid: u32,
    fd: OwnedFd,
}

/// Whether the end of a process can be watched.
#[derive(Debug)]
pub(crate) enum Watch {
    On(Pidfd),
    /// It has ended already.
    Gone,
    /// Not from here, or not with this kernel.
    Impossible,
}

impl Pidfd {
    pub(crate) fn open(pid: u32, id: ProcessId) -> Watch {
        if look(pid, id) == Sight::Hidden {
            return Watch::Impossible;
        }
        // SAFETY: pidfd_open takes no pointers; a descriptor that it returns is ours alone.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            let gone = io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            return if gone { Watch::Gone } else { Watch::Impossible };
        }
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        // The number may have been given to a later process before the descriptor was opened; afterwards it cannot.
        match look(pid, id) {
            Sight::Gone => Watch::Gone,
            _ => Watch::On(Self { pid, fd }),
        }
    }
    /// How the process ended, once the descriptor is readable. The second value: it may have done its work before.
    pub(crate) fn ending(&self) -> (String, bool) {
        let status = match Stat::read(self.pid) {
            Some(Stat { state: b'Z', exit, .. }) => exit,
            _ => self.reaped_status(),
        };
        match status {
            None => ("its process ended".to_owned(), true),
            Some(status) if libc::WIFSIGNALED(status) => {
                (format!("killed by signal {}", libc::WTERMSIG(status)), false)
            }
            Some(status) => {
                let code = libc::WEXITSTATUS(status);
                (format!("exited with status {code} without saying goodbye"), code == 0)
            }
        }
    }
    /// Kernels from 6.15 on remember the status of a process for those who hold a descriptor of it.
    fn reaped_status(&self) -> Option<i32> {
        let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
        // SAFETY: `info` has the layout of the first version of the kernel's structure, whose size is part of the request.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `struct pidfd_info` of the kernel, first version (64 bytes).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::Ioctl =
    (3 << 30 | (size_of::<PidfdInfo>() as libc::Ioctl) << 16 | 0xff << 8 | 11) as libc::Ioctl;
