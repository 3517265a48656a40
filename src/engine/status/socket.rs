//! The socket through which a process hands its page to those who ask: one per process, for its own user only.
//!
//! Who asks gets the page's descriptor and nothing else, so that one answer is enough for any number of readings, and no
//! protocol has versions beside the page's. A directory that only the user can enter, and the peer's credentials, keep
//! others out.

use super::{
    StatusPage,
    passing::{credentials, send_descriptor},
};
use crate::plan::Rank;
use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::{DirBuilderExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

/// Where the sockets of one user are: a directory that nobody else can enter.
#[derive(Clone, Debug)]
pub struct SocketDirectory(PathBuf);

impl SocketDirectory {
    /// The user's directory, made if it is not there: `rondel` in `runtime_dir` (what `XDG_RUNTIME_DIR` says) if that is a
    /// directory, `/tmp/rondel-<uid>` otherwise.
    ///
    /// # Errors
    /// As of [`at`](Self::at).
    pub fn of_user(runtime_dir: Option<&Path>) -> io::Result<Self> {
        let own = in_runtime_dir(runtime_dir).filter(|path| path.parent().is_some_and(Path::is_dir));
        Self::at(own.unwrap_or_else(shared_path))
    }

    /// A directory, made if it is not there.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not a directory that this user owns and nobody else can enter; the system's if it
    /// cannot be made. The job can run without it: then `rondel status` does not see this process.
    pub fn at(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(named(&path, error)),
            _ => Self::existing(path),
        }
    }

    /// A directory that somebody made before.
    pub(super) fn existing(path: PathBuf) -> io::Result<Self> {
        let found = fs::symlink_metadata(&path).map_err(|error| named(&path, error))?;
        let mode = found.permissions().mode() & 0o7777;
        let fault = if found.is_symlink() {
            "it is a symbolic link".to_owned()
        } else if !found.is_dir() {
            "it is not a directory".to_owned()
        } else if found.uid() != user() {
            format!("it belongs to user {}", found.uid())
        } else if mode & 0o077 != 0 {
            format!("its mode {mode:#o} lets others in")
        } else {
            return Ok(SocketDirectory(path));
        };
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{}: {fault}; expected a directory of user {} with mode 0700. Remove it, or set XDG_RUNTIME_DIR to a \
                 directory of your own",
                path.display(),
                user()
            ),
        ))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The user's directory that needs no environment.
pub(super) fn shared_path() -> PathBuf {
    PathBuf::from(format!("/tmp/rondel-{}", user()))
}

/// The user's directory in `XDG_RUNTIME_DIR`, which counts only if it is absolute.
pub(super) fn in_runtime_dir(runtime_dir: Option<&Path>) -> Option<PathBuf> {
    runtime_dir.filter(|path| path.is_absolute()).map(|path| path.join("rondel"))
}

/// Hands this process's page to whoever of the same user connects. Removed from the file system when dropped.
#[derive(Debug)]
pub struct StatusSocket {
    listener: UnixListener,
    path: PathBuf,
    page: Arc<StatusPage>,
    /// A forked child that drops its copy must not remove the parent's socket.
    creator: u32,
}

impl StatusSocket {
    /// Listens as `<job>-<rank>.sock` for the owner of `page`. The descriptor ([`AsFd`]) is nonblocking and readable when
    /// [`accept_one`](Self::accept_one) has something to do.
    ///
    /// # Errors
    /// `AddrInUse` if a process that is alive listens for the same rank of the same job; the system's otherwise, such as
    /// of a path that is too long for a socket.
    pub fn serve(directory: &SocketDirectory, page: Arc<StatusPage>) -> io::Result<Self> {
        let owner = page.owner();
        let path = directory.path().join(file_name(owner.job, owner.rank));
        if UnixStream::connect(&path).is_ok() {
            let what =
                format!("{}: another process listens here as the same rank of this job", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        // Between bind and listen a socket refuses connections, by which readers know the dead and remove what they left:
        // it gets its name when it listens.
        let unnamed = path.with_extension("new");
        let _ = fs::remove_file(&unnamed);
        let listener = UnixListener::bind(&unnamed).map_err(|error| named(&unnamed, error))?;
        let mut socket = StatusSocket { listener, path: unnamed, page, creator: process::id() };
        socket.listener.set_nonblocking(true)?;
        fs::rename(&socket.path, &path).map_err(|error| named(&path, error))?;
        socket.path = path;
        Ok(socket)
    }

    /// Answers one connection; false if none waits. Never blocks, and a peer that misbehaves is only hung up on.
    ///
    /// # Errors
    /// The listener's own, such as no descriptor left. It stays readable then: stop watching it, for a while or for good.
    pub fn accept_one(&self) -> io::Result<bool> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) =>
            {
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let peer = credentials(stream.as_fd());
        if peer.is_ok_and(|peer| peer.uid == user() || peer.uid == 0) {
            // Whoever hung up before the answer does not miss it.
            let _ = send_descriptor(&stream, self.page.descriptor());
        }
        Ok(true)
    }

    /// Where it is in the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        if process::id() == self.creator {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The name of a rank's socket.
fn file_name(job: u64, rank: Rank) -> String {
    format!("{job:016x}-{rank}.sock")
}

/// Whose socket has this name; `None`: it is none of ours.
pub(super) fn parse_file_name(name: &str) -> Option<(u64, Rank)> {
    let (job, rank) = name.strip_suffix(".sock")?.split_once('-')?;
    let owner = (u64::from_str_radix(job, 16).ok()?, rank.parse().ok()?);
    (file_name(owner.0, owner.1) == name).then_some(owner)
}

/// The effective user of this process.
pub(super) fn user() -> u32 {
    // SAFETY: a plain system call that cannot fail.
    unsafe { libc::geteuid() }
}

/// The same error, with what it was about.
pub(super) fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
