//! Which regions the two ends of a lane know of.
//!
//! A region is shown to a peer once: its descriptor crosses on the lane's socket, before the first record that refers to it
//! is published. Both ends number the regions that crossed, so no number is ever used twice. When no record refers to a
//! region any more and its owner wants no more to do with it, its number crosses once more.

use crate::{
    region::{OwnRegion, PeerRegion},
    socket::{self, Word},
};
use rondel_transport_api::RegionId;
use std::os::{fd::OwnedFd, unix::net::UnixStream};

/// Regions that a lane's peer may know of at a time: each takes a mapping there.
pub(crate) const MOST: usize = 64;

/// A message, or what is left of it, in a region that the peer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) number: u32,
    /// Where in the region it begins.
    pub(crate) offset: u64,
}

#[derive(Debug)]
struct Known {
    region: RegionId,
    number: u32,
    /// Messages that the peer may still read from it.
    uses: u32,
    /// We want no more to do with it.
    gone: bool,
}

/// Regions of ours that the peer knows.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    next: u32,
    list: Vec<Known>,
    /// Numbers of regions that are gone, which the peer has not been told.
    unsaid: Vec<u32>,
}

impl Ours {
    /// The number of a region, for one more message. `None`: the peer does not know it, and cannot be shown it now.
    pub(crate) fn refer(&mut self, id: RegionId, region: &OwnRegion, socket: &UnixStream) -> Option<u32> {
        if let Some(known) = self.list.iter_mut().find(|known| known.region == id) {
            known.uses += 1;
            return Some(known.number);
        }
        if self.list.len() + self.unsaid.len() >= MOST {
            return None;
        }
        socket::say(socket, Word::Region, &[region.file()]).ok()?;
        let number = self.next;
        self.next += 1;
        self.list.push(Known { region: id, number, uses: 1, gone: false });
        Some(number)
    }

    /// A message that referred to a region is over.
    pub(crate) fn end_use(&mut self, number: u32) {
        let Some(at) = self.list.iter().position(|known| known.number == number) else { return };
        let known = &mut self.list[at];
        known.uses -= 1;
        if known.gone && known.uses == 0 {
            self.withdraw(at);
        }
    }

    /// We want no more to do with a region.
    pub(crate) fn forget(&mut self, id: RegionId) {
        let Some(at) = self.list.iter().position(|known| known.region == id) else { return };
        self.list[at].gone = true;
        if self.list[at].uses == 0 {
            self.withdraw(at);
        }
    }

    fn withdraw(&mut self, at: usize) {
        self.unsaid.push(self.list.swap_remove(at).number);
    }

    /// Whether the peer must be told something.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        !self.unsaid.is_empty()
    }

    /// Tells the peer what it must be told, as far as its socket takes it.
    pub(crate) fn say(&mut self, socket: &UnixStream) {
        while let Some(&number) = self.unsaid.last() {
            if socket::say_gone(socket, number).is_err() {
                return;
            }
            self.unsaid.pop();
        }
    }
}

/// Regions of the peer that we know.
#[derive(Debug, Default)]
pub(crate) struct Theirs {
    next: u32,
    list: Vec<(u32, PeerRegion)>,
}

/// Why a reference leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Astray {
    /// The region has not been shown, as far as was heard.
    Unknown,
    /// It has, and this is what is wrong.
    Outside(String),
}

impl Theirs {
    /// Takes a region that the peer shows. The error says what is wrong.
    pub(crate) fn adopt(&mut self, fds: &[OwnedFd]) -> Result<(), String> {
        let [file] = fds else {
            return Err(format!("it sent {} descriptors, expected 1: a region of its memory", fds.len()));
        };
        if self.list.len() >= MOST {
            return Err(format!("it showed {} regions of its memory, expected {MOST} at most", MOST + 1));
        }
        self.list.push((self.next, PeerRegion::adopt(file)?));
        self.next += 1;
        Ok(())
    }

    /// The peer wants no more to do with a region. The error says what is wrong.
    pub(crate) fn forget(&mut self, number: u32) -> Result<(), String> {
        let at = self.list.iter().position(|&(known, _)| known == number);
        let at =
            at.ok_or_else(|| format!("it said that its region {number} is gone, which it is or never came"))?;
        self.list.swap_remove(at);
        Ok(())
    }

    /// Where a message is, all of whose bytes must be in the region.
    pub(crate) fn find(&self, reference: Reference, len: u32) -> Result<*const u8, Astray> {
        let Reference { number, offset } = reference;
        let known = self.list.iter().find(|&&(known, _)| known == number);
        let (_, region) = known.ok_or(Astray::Unknown)?;
        region.at(offset, len).ok_or_else(|| {
            let has = region.len();
            Astray::Outside(format!(
                "its ring refers to {len} bytes at {offset} of its region {number}, which has {has}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Heard;

    fn heard(socket: &UnixStream) -> Option<(Word, Vec<OwnedFd>)> {
        match socket::hear(socket) {
            Heard::Word(word, fds) => Some((word, fds)),
            _ => None,
        }
    }

    #[test]
    fn a_region_crosses_once_and_goes_when_nothing_refers_to_it() {
        let (here, there) = UnixStream::pair().expect("sockets");
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let region = OwnRegion::new(100).expect("memory");
        assert_eq!(ours.refer(RegionId(5), &region, &here), Some(0));
        assert_eq!(ours.refer(RegionId(5), &region, &here), Some(0));
        let (word, fds) = heard(&there).expect("the region");
        assert_eq!(word, Word::Region);
        theirs.adopt(&fds).expect("it is as it should be");
        assert!(heard(&there).is_none(), "once is enough");
        let reference = Reference { number: 0, offset: 10 };
        assert!(theirs.find(reference, 90).is_ok());

        ours.end_use(0);
        ours.forget(RegionId(5));
        assert!(!ours.owes(), "a message refers to it");
        ours.end_use(0);
        assert!(ours.owes());
        ours.say(&here);
        assert!(!ours.owes());
        assert_eq!(heard(&there).expect("a word").0, Word::Gone);
        assert_eq!(socket::hear_number(&there), Some(0));
        theirs.forget(0).expect("it was known");
        assert_eq!(theirs.find(reference, 1), Err(Astray::Unknown));
        theirs.forget(0).expect_err("it is gone already");
        assert_eq!(ours.refer(RegionId(5), &region, &here), Some(1), "no number comes twice");
    }

    #[test]
    fn a_peer_is_shown_no_more_than_it_takes() {
        let (here, there) = UnixStream::pair().expect("sockets");
        let (mut ours, mut theirs) = (Ours::default(), Theirs::default());
        let region = OwnRegion::new(100).expect("memory");
        for id in 0..MOST as u32 {
            assert_eq!(ours.refer(RegionId(id), &region, &here), Some(id));
            theirs.adopt(&heard(&there).expect("a region").1).expect("room for it");
        }
        assert_eq!(ours.refer(RegionId(1000), &region, &here), None);
        let one_more = region.file().try_clone_to_owned().expect("a descriptor");
        let error = theirs.adopt(&[one_more]).expect_err("one too many");
        assert!(error.contains("65 regions"), "{error}");
        ours.end_use(7);
        ours.forget(RegionId(7));
        ours.say(&here);
        assert_eq!(ours.refer(RegionId(1000), &region, &here), Some(MOST as u32));
    }
}
