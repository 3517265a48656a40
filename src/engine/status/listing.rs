//! Finding the pages of this host's processes.

use super::{
    ProcessState, StatusView, memory,
    passing::{credentials, receive_descriptor},
    process_state,
    socket::{SocketDirectory, in_runtime_dir, parse_file_name, shared_path, user},
};
use crate::plan::Rank;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a process may take to answer before its page is looked for in `/proc`.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A process of some job, and its page.
#[derive(Debug)]
pub struct Process {
    /// Its number here. The page has the one in the owner's own namespace.
    pub pid: u32,
    /// Its page.
    pub view: StatusView,
}

/// What was found on this host.
#[derive(Debug, Default)]
pub struct Listing {
    /// By job, then by rank.
    pub processes: Vec<Process>,
    /// What could not be read (a socket, or a directory of sockets), and why.
    pub unreadable: Vec<(PathBuf, io::Error)>,
}

impl Process {
    /// Whether it runs.
    pub fn state(&self) -> ProcessState {
        process_state(self.pid, self.view.started())
    }
}

/// All processes of this user on this host that show a page. `runtime_dir` is what `XDG_RUNTIME_DIR` says; sockets are
/// looked for in both places where [`SocketDirectory::of_user`] may have put them. What dead processes left is removed.
/// Blocks for up to a second per process that does not answer.
pub fn list_jobs(runtime_dir: Option<&Path>) -> Listing {
    let mut listing = Listing::default();
    for path in in_runtime_dir(runtime_dir).into_iter().chain([shared_path()]) {
        match SocketDirectory::existing(path.clone()) {
            Ok(directory) => listing.add(&directory),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => listing.unreadable.push((path, error)),
        }
    }
    listing.sort();
    listing
}

impl Listing {
    /// All processes with a socket in this directory.
    pub fn of(directory: &SocketDirectory) -> Self {
        let mut listing = Listing::default();
        listing.add(directory);
        listing.sort();
        listing
    }

    fn sort(&mut self) {
        self.processes.sort_by_key(|process| {
            let owner = process.view.owner();
            (owner.job, owner.rank)
        });
    }

    fn add(&mut self, directory: &SocketDirectory) {
        let entries = match fs::read_dir(directory.path()) {
            Ok(entries) => entries,
            Err(error) => return self.unreadable.push((directory.path().to_owned(), error)),
        };
        for entry in entries.flatten() {
            let Some(owner) = entry.file_name().to_str().and_then(parse_file_name) else { continue };
            let path = entry.path();
            match open(&path, owner) {
                Ok(process) => self.processes.push(process),
                // Gone since the directory was read, or left by a process that is gone.
                Err(_) if !path.exists() => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(&path);
                }
                Err(error) => self.unreadable.push((path, error)),
            }
        }
    }
}

/// The page behind one socket, from the process if it answers, from `/proc` if it is stopped or starved.
fn open(path: &Path, owner: (u64, Rank)) -> io::Result<Process> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Connecting would block while many wait for a process that is stopped.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(error.kind(), "too many readers wait for its answer already")
        }
        _ => error,
    })?;
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let stream = UnixStream::from(OwnedFd::from(socket));
    let peer = credentials(stream.as_fd())?;
    if peer.uid != user() && user() != 0 {
        let what = format!("user {} listens here, expected user {}", peer.uid, user());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let pid = peer.pid as u32;
    let stopped = process_state(pid, 0) == ProcessState::Stopped;
    let answer = if stopped { Err(io::ErrorKind::WouldBlock.into()) } else { receive_descriptor(&stream) };
    let view = match answer {
        Ok(descriptor) => StatusView::map(descriptor.as_fd())?,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => find_page(pid, owner)?,
        Err(error) => return Err(error),
    };
    let found = view.owner();
    if (found.job, found.rank) != owner {
        let what = format!("the page is that of rank {} of job {:016x}", found.rank, found.job);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Process { pid, view })
}

/// The page of a process that does not answer, among its open descriptors. `owner`: its job and its rank there.
pub(crate) fn find_page(pid: u32, owner: (u64, Rank)) -> io::Result<StatusView> {
    let directory = PathBuf::from(format!("/proc/{pid}/fd"));
    let silent = |error: io::Error| {
        let what =
            format!("process {pid} does not answer, and its page is not found in {}", directory.display());
        io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    let name = format!("/memfd:{}", memory::NAME.to_string_lossy());
    let is_page = |path: &Path| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str().to_string_lossy().starts_with(&name))
    };
    fs::read_dir(&directory)
        .map_err(silent)?
        .flatten()
        .filter(|entry| is_page(&entry.path()))
        .filter_map(|entry| StatusView::map(File::open(entry.path()).ok()?.as_fd()).ok())
        .find(|view| (view.owner().job, view.owner().rank) == owner)
        .ok_or_else(|| silent(io::ErrorKind::NotFound.into()))
}
