//! Status pages of strangers: a real page with arbitrary words in it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel::engine::status::{Owner, RECENT, StatusPage, StatusView};
use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd},
        unix::fs::FileExt,
    },
    sync::LazyLock,
};

/// A page with one communicator, as its owner made it.
static PAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let page =
        StatusPage::create(&Owner { job: 1, rank: 2, nranks: 4, pid: std::process::id() }).expect("a page");
    page.open_slot(9, 2, 4).expect("room for one");
    let mut bytes = Vec::new();
    File::from(page.descriptor().try_clone_to_owned().expect("a descriptor"))
        .read_to_end(&mut bytes)
        .expect("read");
    bytes
});

/// Sealed memory with these bytes.
fn memory(bytes: &[u8]) -> File {
    // SAFETY: the name is a C string, and the new descriptor is ours alone.
    let file = unsafe {
        let raw = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(raw >= 0, "no descriptor left");
        File::from_raw_fd(raw)
    };
    file.write_all_at(bytes, 0).expect("memory");
    // SAFETY: a plain system call on our own descriptor.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!(sealed, 0);
    file
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = PAGE.clone();
    let words = bytes.len() / 8;
    for patch in data.chunks_exact(10) {
        let (at, value) = patch.split_at(2);
        let word = usize::from(u16::from_le_bytes([at[0], at[1]])) % words;
        bytes[word * 8..][..8].copy_from_slice(value);
    }
    let file = memory(&bytes);
    let Ok(view) = StatusView::map(file.as_fd()) else { return };
    let (_, _) = (view.owner(), view.started());
    for status in view.read_all().into_iter().chain(view.read(9)) {
        assert!(status.rank < status.nranks && status.recent.len() <= RECENT);
        assert!(status.waiting.as_ref().is_none_or(|waiting| waiting.peer < status.nranks));
        let text: String = status.recent.iter().map(ToString::to_string).collect();
        assert!(text.len() < RECENT * 200);
    }
});
