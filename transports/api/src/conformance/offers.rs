//! Clause 9, and bytes that come from elsewhere.

use super::{Fixture, rig::Rig};
use crate::{MemoryKind, Offer, Region, conformance::memory::Buffer, random::Random};

/// Clause 9: whether two endpoints reach each other, and over what, is the same question from both sides.
pub fn reaching_is_symmetric<F: Fixture>() {
    let mut rig = Rig::<F>::new(3);
    let adverts: Vec<_> = (0..3).map(|end| rig.endpoint(end).advert()).collect();
    for i in 0..3 {
        for j in 0..3 {
            let there = rig.endpoint(i).reaches(&adverts[j]);
            let back = rig.endpoint(j).reaches(&adverts[i]);
            assert_eq!(there, back, "clause 9: reaches is not symmetric between {i} and {j}");
            assert!(i == j || there.is_some(), "the fixture's endpoints {i} and {j} must reach each other");
        }
    }
    let mut foreign = adverts[1].clone();
    foreign.transport = "carrier pigeon".to_owned();
    assert_eq!(rig.endpoint(0).reaches(&foreign), None, "an endpoint of another transport is not reached");
    let mut random = Random::new(1);
    for _ in 0..200 {
        // Adverts are foreign bytes too: no answer is wrong, but none may panic.
        foreign.transport.clone_from(&adverts[1].transport);
        foreign.domain = random_bytes(&mut random, 40);
        foreign.address = random_bytes(&mut random, 40);
        let _ = rig.endpoint(0).reaches(&foreign);
    }
}

/// Truncated, prolonged and random offers are errors, never panics; the lane can still be closed.
pub fn foreign_offers_are_refused<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let (a, _, b, Offer(good)) = rig.prepare(0, 1);
    let mut random = Random::new(2);
    let truncated = (0..good.len()).map(|n| good[..n].to_vec());
    let longer = [[&good[..], &[0]].concat(), [&good[..], &good[..]].concat()];
    let noise: Vec<_> = (0..500).map(|_| random_bytes(&mut random, 2 * good.len() + 2)).collect();
    for bytes in truncated.chain(longer).chain(noise) {
        let offer = Offer(bytes);
        let answer = rig.endpoint(0).establish(a.id, &offer);
        assert!(answer.is_err(), "an offer that no peer made was taken: {:02x?}", offer.0);
    }
    for lane in [a, b] {
        rig.close(lane);
        rig.closed(lane);
    }
}

/// Registrations have names of their own, and may be forgotten.
pub fn regions_are_told_apart<F: Fixture>() {
    let mut rig = Rig::<F>::new(1);
    let (x, y) = (Buffer::new(5000, 0), Buffer::new(10, 1));
    let mut register = |buffer: &Buffer| {
        let region = Region { addr: buffer.addr(), len: buffer.len(), kind: MemoryKind::Host };
        rig.endpoint(0).register(region).expect("host memory can be registered")
    };
    let (first, second) = (register(&x), register(&y));
    assert_ne!(first, second);
    rig.endpoint(0).deregister(first);
    rig.endpoint(0).deregister(second);
}

fn random_bytes(random: &mut Random, most: usize) -> Vec<u8> {
    let len = random.below(most as u64 + 1) as usize;
    super::memory::pattern(len, random.next())
}
