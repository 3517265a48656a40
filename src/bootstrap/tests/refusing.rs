use super::*;
use rondel_transport_api::{Offer, handshake::Handshake};
use std::{
    io::{Read, Write},
    net::TcpStream,
};

const SOON: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(20);

fn at(address: &str, rank: Rank, nranks: u32) -> Rendezvous {
    Rendezvous::root(address, rank, nranks).unwrap()
}

fn error(result: Result<(Watcher, Job), SetupError>) -> SetupError {
    result.map(|(_, job)| job).expect_err("this rank must not join")
}

#[test]
fn the_missing_are_listed_on_every_rank_that_came() {
    let address = free_address();
    let results = join_all(vec![at(&address, 0, 5), at(&address, 3, 5)], SOON);
    for result in results {
        match error(result) {
            SetupError::Missing { ranks, nranks, .. } => assert_eq!((ranks, nranks), (vec![1, 2, 4], 5)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn without_a_root_the_address_is_named() {
    let address = free_address();
    let text = error(join_with(&at(&address, 1, 2), SOON)).to_string();
    assert!(text.contains(&address) && text.contains("refused") && text.contains("Start rank 0"), "{text}");
}

#[test]
fn a_rank_taken_twice_names_both_processes() {
    let address = free_address();
    let mut results = join_all(vec![at(&address, 0, 3), at(&address, 1, 3), at(&address, 1, 3)], SOON);
    let texts: Vec<String> = results.drain(..).map(|result| error(result).to_string()).collect();
    let twice = format!("process {} on", std::process::id());
    let told = texts.iter().filter(|text| text.contains("rank 1 is taken twice")).collect::<Vec<_>>();
    assert_eq!(told.len(), 1, "{texts:?}");
    assert_eq!(told[0].matches(&twice).count(), 2, "{told:?}");
}

#[test]
fn a_second_rank_zero_is_told_by_the_first() {
    let address = free_address();
    let texts: Vec<String> = join_all(vec![at(&address, 0, 2), at(&address, 0, 2)], SOON)
        .into_iter()
        .map(|r| error(r).to_string())
        .collect();
    assert!(texts.iter().any(|text| text.contains("rank 0 is taken twice")), "{texts:?}");
}

#[test]
fn another_number_of_ranks_is_named_with_both() {
    let address = free_address();
    let results = join_all(vec![at(&address, 0, 2), at(&address, 1, 3)], SOON);
    let text = error(results.into_iter().nth(1).unwrap()).to_string();
    assert!(text.contains("was told that there are 3 ranks") && text.contains("was told 2"), "{text}");
}

#[test]
fn another_key_is_refused_at_once() {
    let address = free_address();
    let began = Instant::now();
    let second = {
        let stranger = at(&address, 1, 2).with_secret("another");
        thread::spawn(move || (join_with(&stranger, LONG), began.elapsed()))
    };
    let first = thread::spawn({
        let root = at(&address, 0, 2);
        move || join_with(&root, Duration::from_secs(3))
    });
    let (result, after) = second.join().unwrap();
    let text = error(result).to_string();
    assert!(text.contains("another key") && text.contains("RONDEL_KEY"), "{text}");
    assert!(after < Duration::from_secs(3), "{after:?}");
    assert!(matches!(error(first.join().unwrap()), SetupError::Missing { ranks, .. } if ranks == [1]));
}

#[test]
fn another_version_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let rendezvous = at(&address, 1, 2);
    let key = rendezvous.key().clone();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut handshake = Handshake::server(&key);
        let mut bytes = [0; 512];
        while handshake.output().is_empty() {
            let wanted = handshake.wants();
            let n = stream.read(&mut bytes[..wanted]).unwrap();
            assert_eq!(handshake.handle_input(&bytes[..n]).unwrap(), n);
        }
        let mut answer = handshake.output().to_vec();
        answer[4..6].copy_from_slice(&77u16.to_le_bytes());
        stream.write_all(&answer).unwrap();
    });
    let text = error(join_with(&rendezvous, LONG)).to_string();
    assert!(text.contains("version 77"), "{text}");
    server.join().unwrap();
}

#[test]
fn a_second_job_on_the_port_of_a_running_one_is_told() {
    let address = free_address();
    let running = join_all(vec![at(&address, 0, 2), at(&address, 1, 2)], LONG);
    assert!(running.iter().all(Result::is_ok));
    let text = error(join_with(&at(&address, 1, 2), LONG)).to_string();
    assert!(text.contains("came too late"), "{text}");
}

#[test]
fn the_root_must_be_on_this_host() {
    let text = error(join_with(&at("192.0.2.1:29400", 0, 2), SOON)).to_string();
    assert!(text.contains("192.0.2.1") && text.contains("no address of this host"), "{text}");
}

#[test]
fn joining_is_aborted_from_another_thread() {
    let rendezvous = at(&free_address(), 1, 2);
    let watcher = Watcher::start(config(rendezvous.key())).unwrap();
    let abort = AtomicBool::new(false);
    let began = Instant::now();
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            abort.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        watcher.join(&rendezvous, Card { adverts: Vec::new() }, Instant::now() + LONG, &abort)
    });
    assert!(matches!(result, Err(SetupError::Aborted)), "{result:?}");
    assert!(began.elapsed() < Duration::from_millis(400));
}

#[test]
fn strangers_at_every_listener_harm_nobody() {
    let address = free_address();
    let root = thread::spawn({
        let root = at(&address, 0, 3);
        move || join_with(&root, LONG)
    });
    let mut held = pester(&address);
    let second = thread::spawn({
        let second = at(&address, 1, 3);
        move || join_with(&second, LONG)
    });
    held.extend(pester(&address));
    let began = Instant::now();
    let last = join_with(&at(&address, 2, 3), LONG).unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let ranks = [root.join().unwrap().unwrap(), second.join().unwrap().unwrap(), last];
    for (watcher, _) in &ranks {
        held.extend(pester(&watcher.acceptor().addresses()[0].to_string()));
    }
    let offer = LaneOffer { comm: 1, channel: 0, endpoint: 0, offer: Offer(vec![1]) };
    for to in [1, 2] {
        ranks[0].0.send_offer(to, offer.clone());
        let got = wait_notice(&ranks[to as usize].0, LONG, |notice| match notice {
            Notice::Offer { offer, .. } => Some(offer),
            Notice::Failed(failure) => panic!("{failure}"),
            _ => None,
        });
        assert_eq!(got.as_ref(), Some(&offer));
    }
}

/// Random bytes, half handshakes, our own magic with nonsense behind it, and a port scan. Returns what stays open.
fn pester(address: &str) -> Vec<TcpStream> {
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    let connect = || {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => return stream,
                Err(e) => assert!(Instant::now() < until, "{e}"),
            }
        }
    };
    let hello = rondel_transport_api::handshake::Hello {
        rank: 0,
        purpose: rondel_transport_api::handshake::Purpose::Join,
    };
    let genuine = Handshake::client(&Key([9; 32]), hello).output().to_vec();
    let mut held = Vec::new();
    for i in 0..20 {
        let mut stream = connect();
        let bytes = match i % 4 {
            0 => (0..300).map(|_| random()).collect(),
            1 => genuine[..genuine.len() / 2].to_vec(),
            2 => genuine.iter().enumerate().map(|(i, byte)| if i < 8 { *byte } else { random() }).collect(),
            _ => genuine.clone(),
        };
        // The other side may have hung up on it before.
        let _ = stream.write_all(&bytes);
        held.push(stream);
    }
    for _ in 0..500 {
        drop(connect());
    }
    held
}

#[test]
fn what_one_rank_cannot_do_is_told_to_all() {
    for decliner in [0, 2] {
        let address = free_address();
        let threads = [0, 1, 2, 3].map(|rank| {
            let rendezvous = at(&address, rank, 4);
            thread::spawn(move || {
                // Some come before the one that declines, some after it.
                thread::sleep(Duration::from_millis(u64::from(rank) * 30));
                if rank != decliner {
                    return Some(error(join_with(&rendezvous, LONG)).to_string());
                }
                let watcher = Watcher::start(config(rendezvous.key())).unwrap();
                watcher.decline(&rendezvous, "it has no hands", &AtomicBool::new(false));
                None
            })
        });
        let began = Instant::now();
        let texts: Vec<String> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(texts.len(), 3);
        for text in texts {
            let (who, why) = (format!("rank {decliner} (process "), "cannot take part: it has no hands");
            assert!(text.contains(&who) && text.contains(why), "{text}");
        }
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }
}
