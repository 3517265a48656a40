//! Reading somebody else's page.

use super::{
    Owner, Status,
    memory::{self, Mapping},
};
use std::{io, os::fd::BorrowedFd};

/// Somebody else's page, mapped read-only. It stays readable after its owner's death, with the last words that it wrote.
#[derive(Debug)]
pub struct StatusView {
    mapping: Mapping,
}

impl StatusView {
    /// Maps and checks a page: size, seals, magic, version. Foreign memory, so every field is validated when read.
    ///
    /// # Errors
    /// `InvalidData`, with what was found and what a page has, if it is not one of this release; the kernel's otherwise.
    pub fn map(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let mapping = memory::map(descriptor)?;
        mapping.page().check().map_err(memory::refused)?;
        Ok(StatusView { mapping })
    }
    /// Whose it is, in its own words. The process id is that of its own namespace.
    pub fn owner(&self) -> Owner {
        self.mapping.page().owner()
    }
    /// When the owner started, in clock ticks since the host did ([`super::process_state`] takes it); 0: not known.
    pub fn started(&self) -> u64 {
        self.mapping.page().started()
    }
    /// The status of one communicator, by its id. `None` too if the page makes no sense there.
    pub fn read(&self, comm: u64) -> Option<Status> {
        self.mapping.page().read(comm)
    }
    /// All of them.
    pub fn read_all(&self) -> Vec<Status> {
        self.mapping.page().read_all()
    }
}
