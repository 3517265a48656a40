use super::*;
use rondel_transport_api::Offer;

#[test]
fn ranks_meet_at_a_root_and_know_each_other() {
    for n in [1, 2, 3, 8, 32] {
        let began = Instant::now();
        let ranks = job(n);
        println!("{n} ranks joined in {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(5), "{n} ranks took {:?}", began.elapsed());
        for (rank, (_, job)) in (0..).zip(&ranks) {
            assert_eq!((job.rank, job.id, job.members.len()), (rank, ranks[0].1.id, n as usize));
            assert!((0..).zip(job.members.iter()).all(|(i, member)| member.rank == i));
        }
    }
}

#[test]
fn offers_arrive_once_and_in_order() {
    let ranks = job(5);
    let offer = |from: u32, i: u16| LaneOffer {
        comm: u64::from(from),
        channel: i,
        endpoint: 0,
        offer: Offer(vec![7; 300]),
    };
    for i in 0..200 {
        for (from, (watcher, _)) in (0..).zip(&ranks) {
            for to in (0..5).filter(|to| *to != from) {
                watcher.send_offer(to, offer(from, i));
            }
        }
    }
    for (watcher, _) in &ranks {
        let mut next = [0; 5];
        for _ in 0..800 {
            let (from, offer) = wait_notice(watcher, Duration::from_secs(10), |notice| match notice {
                Notice::Offer { from, offer } => Some((from, offer)),
                _ => None,
            })
            .expect("an offer is missing");
            assert_eq!((offer.comm, offer.channel), (u64::from(from), next[from as usize]));
            next[from as usize] += 1;
        }
        assert!(
            wait_notice(watcher, Duration::from_millis(100), |n| matches!(n, Notice::Offer { .. })
                .then_some(()))
            .is_none()
        );
    }
}
