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

#[derive(Debug, Default)]
struct Shelf {
    values: std::sync::Mutex<std::collections::HashMap<String, Vec<u8>>>,
    changed: std::sync::Condvar,
}

impl Store for Shelf {
    fn set(&self, name: &str, value: &[u8]) -> std::io::Result<()> {
        self.values.lock().unwrap().insert(name.to_owned(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }
    fn get(&self, name: &str, timeout: Duration) -> std::io::Result<Vec<u8>> {
        let values = self.values.lock().unwrap();
        let lacks = |values: &mut std::collections::HashMap<String, Vec<u8>>| !values.contains_key(name);
        let (values, _) = self.changed.wait_timeout_while(values, timeout, lacks).unwrap();
        values.get(name).cloned().ok_or_else(|| std::io::ErrorKind::TimedOut.into())
    }
}

#[test]
fn ranks_meet_in_a_store() {
    let store: Arc<dyn Store> = Arc::new(Shelf::default());
    let threads: Vec<_> = (0..4)
        .map(|rank| {
            let store = store.clone();
            thread::spawn(move || {
                let wait = Duration::from_secs(10);
                join_with(&Rendezvous::store(store, rank, 4, "job 1", wait).unwrap(), wait)
            })
        })
        .collect();
    let ranks: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
    assert!(ranks.iter().all(|(_, job)| job.id == ranks[0].1.id));
}

#[test]
fn ranks_meet_by_a_unique_id() {
    for n in [1, 3] {
        let id = UniqueId::generate(None, None, None).unwrap();
        let id = UniqueId::from_bytes(&id.to_bytes()).unwrap();
        let all = (0..n).map(|rank| Rendezvous::unique_id(&id, rank, n).unwrap()).collect();
        let ranks: Vec<_> = join_all(all, Duration::from_secs(10)).into_iter().map(Result::unwrap).collect();
        assert!(ranks.iter().all(|(_, job)| job.id == ranks[0].1.id && job.members.len() == n as usize));
    }
}

#[test]
fn the_others_pass_strangers_by_where_several_ports_are_probed() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    // Its first port is taken by somebody who never says a word.
    let last = port.saturating_add(9);
    let all = (0..2)
        .map(|rank| Rendezvous::at("127.0.0.1".into(), port..=last, rank, 2, &["probing"]).unwrap())
        .collect();
    let ranks = join_all(all, Duration::from_secs(20));
    assert!(
        ranks.iter().all(Result::is_ok),
        "{:?}",
        ranks.iter().filter_map(|r| r.as_ref().err()).collect::<Vec<_>>()
    );
}

#[test]
fn an_inquiry_is_answered_while_the_asked_rank_does_something_else() {
    let ranks = job(3);
    enter(&ranks[2].0, 77, 2, 3, 3);
    // Nobody calls anything on rank 2 from here on.
    for (asker, seq, expected) in
        [(0, 3, Some(call(3))), (1, 2, Some(call(2))), (2, 1, Some(call(1))), (0, 4, None)]
    {
        ranks[asker].0.inquire(2, Asked::collective(77, seq));
        let answer = wait_notice(&ranks[asker].0, Duration::from_secs(3), |notice| match notice {
            Notice::Answer(answer) => Some(answer),
            _ => None,
        });
        let expected = Answer {
            about: 2,
            comm: 77,
            seq,
            entered: 3,
            completed: 2,
            call: expected,
            liveness: Liveness::Alive,
        };
        assert_eq!(answer, Some(expected));
    }
}

#[test]
fn a_declared_failure_reaches_all_before_the_goodbye_of_its_origin() {
    let mut ranks = job(9);
    let cause = crate::error::Cause::Aborted { rank: 4, reason: "by the test".into() };
    let failure = Failure { origin: 4, comm: Some(5), cause, waiting: None, agreed: false };
    ranks[4].0.declare(&failure);
    drop(ranks.remove(4));
    for (watcher, _) in &ranks {
        let mut notices = Vec::new();
        wait_notice(watcher, Duration::from_secs(5), |notice| {
            notices.push(notice);
            (notices.len() == 2).then_some(())
        });
        let failed = matches!(&notices[0], Notice::Failed(f) if f.origin == 4 && f.comm == Some(5) && f.culprit() == Some(4));
        assert!(failed && matches!(notices[1], Notice::Left(4)), "{notices:?}");
    }
}
