//! Writes what fuzzing starts with: for each target a folder of small valid inputs.
//!
//! ```text
//! seeds FOLDER
//! ```

// The instrumentation of this program, too, needs libFuzzer's runtime.
use libfuzzer_sys as _;
use rondel::{
    bootstrap::wire::{Asked, Message},
    plan::Collective,
};
use rondel_transport_api::handshake::{Handshake, Hello, Key, Purpose};
use std::{fs, io, path::Path, time::Duration};

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: seeds FOLDER"))?;
    let targets = [
        ("handshake", handshake()),
        ("handshake_relay", relay()),
        ("wire", wire()),
        ("shm_offer", vec![rondel_shm::foreign::encode_offer((1, 2, rondel_shm::foreign::RING, [3; 16]))]),
        ("tcp_offer", offers()),
        ("tcp_stream", streams()),
        ("status_page", pages()),
        ("environment", environments()),
        ("unique_id", unique_ids()),
    ];
    for (target, seeds) in targets {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder)?;
        for (number, seed) in seeds.into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), seed)?;
        }
    }
    Ok(())
}

/// Side, cut, bytes.
fn handshake() -> Vec<Vec<u8>> {
    let key = Key([7; 32]);
    let hello = |purpose| Handshake::client(&key, Hello { rank: 1, purpose }).output().to_vec();
    let mut server = Handshake::server(&key);
    let lane = hello(Purpose::Lane { cookie: 5, stripe: 1 });
    server.handle_input(&lane).expect("our own hello");
    vec![
        [&[0, 255], &lane[..], &[0; 32]].concat(),
        [&[0, 7], &hello(Purpose::Join)[..], &[0; 32]].concat(),
        [&[1, 255], server.output(), &[0; 34]].concat(),
    ]
}

/// Refusal, changed byte, mask, cuts.
fn relay() -> Vec<Vec<u8>> {
    vec![vec![255, 0, 0, 255], vec![0, 0, 0, 10, 3], vec![255, 60, 1, 1], vec![255, 180, 128, 50, 20]]
}

/// A cut, then frames.
fn wire() -> Vec<Vec<u8>> {
    let heartbeat = Message::Heartbeat { offers: 3 }.encode();
    let messages = [
        Message::Rejected("the rank is taken".into()),
        Message::Missing { ranks: vec![1, 5], waited: Duration::from_secs(2) },
        Message::Link { job: 9, to: 1, offers: 0 },
        Message::Inquiry { id: 1, asked: Asked::collective(2, 3) },
        Message::Look {
            id: 1,
            about: 2,
            asked: Some(Asked { comm: 7, seq: 3, between: Some((Collective::Send, 1)) }),
        },
    ];
    let header = |kind: u8, body: &[u8]| {
        let version = &heartbeat[..2];
        [version, &[kind, 0], &(body.len() as u32).to_le_bytes(), body].concat()
    };
    // Bodies that are valid as far as they go, for the kinds whose messages only a watcher can make.
    let zeros = (1..=14).map(|kind| header(kind, &[0; 64]));
    let encoded = messages.iter().map(Message::encode).chain([heartbeat.clone()]);
    encoded.chain(zeros).map(|frame| [&[128], &frame[..], &heartbeat[..]].concat()).collect()
}

fn offers() -> Vec<Vec<u8>> {
    let address = [&[4u8][..], &4000u16.to_le_bytes(), &[192, 0, 2, 1]].concat();
    let offer = [&[1u8][..], &[3; 8], &1u32.to_le_bytes(), &[2, 1], &address].concat();
    let domain = [&[1u8, 3][..], &[9; 8]].concat();
    let filters = ["eth,ib", "=eth0", "^docker,lo", "^=eth3"].map(|text| text.as_bytes().to_vec());
    [offer, domain].into_iter().chain(filters).collect()
}

/// A frame of a lane: its header's fields, and a payload.
fn frame(kind: u8, [len, offset, part]: [u32; 3], number: u64, stamp: u64) -> Vec<u8> {
    let words: Vec<u8> = [len, offset, part].iter().flat_map(|word| word.to_le_bytes()).collect();
    let longs: Vec<u8> = [number, stamp, 0].iter().flat_map(|long| long.to_le_bytes()).collect();
    [b"rdl", &[kind][..], &words, &longs, &vec![1; part as usize]].concat()
}

/// Which receives reduce and how many sockets, the budget, then the stream.
fn streams() -> Vec<Vec<u8>> {
    let ready = frame(3, [0; 3], 0, 0);
    let goodbye = frame(4, [0; 3], 0, 0);
    let whole =
        [frame(1, [0; 3], 0, 0), frame(1, [12, 0, 12], 1, 1), frame(1, [4096, 0, 4096], 2, 2)].concat();
    let parts = [frame(1, [12, 4, 8], 1, 1), frame(1, [12, 0, 4], 1, 1), frame(1, [0; 3], 0, 0)].concat();
    let stream = |shape: u8, frames: &[u8]| [&[shape, 255], &ready[..], frames, &goodbye].concat();
    vec![
        stream(0, &whole),
        stream(15, &whole),
        stream(16, &parts),
        stream(31, &parts),
        stream(0, &frame(2, [0; 3], 0, 0)),
    ]
}

/// Patches: the index of a word and its value. The first words are the header's, then come the heads of the slots.
fn pages() -> Vec<Vec<u8>> {
    let patch = |word: u16, value: u64| [&word.to_le_bytes()[..], &value.to_le_bytes()].concat();
    vec![
        patch(0, 1),
        [patch(9, 9), patch(10, 2 << 32 | 4)].concat(),
        (8..200).flat_map(|word| patch(word, 1)).collect(),
    ]
}

fn environments() -> Vec<Vec<u8>> {
    let torchrun = "RANK=1\nWORLD_SIZE=4\nMASTER_ADDR=10.0.0.1\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=x";
    let slurm = "SLURM_PROCID=1\nSLURM_NTASKS=4\nSLURM_JOB_ID=7\nSLURM_STEP_NODELIST=node[01-03,7],login";
    let own = "RONDEL_ROOT=[::1]:4000\nRONDEL_RANK=0\nRONDEL_NRANKS=2\nRONDEL_PORTS=29500-29600\nRONDEL_TIMEOUT=0.5";
    let nccl = "NCCL_SOCKET_IFNAME=^docker,lo\nNCCL_ALGO=Ring\nNCCL_SOCKET_FAMILY=AF_INET6\nRONDEL_TIMOUT=3";
    [torchrun, slurm, own, nccl].map(|text| text.as_bytes().to_vec()).to_vec()
}

fn unique_ids() -> Vec<Vec<u8>> {
    let v4 = [&[4u8, 127, 0, 0, 1][..], &4000u16.to_le_bytes()].concat();
    let v6 = [&[6u8][..], &[0x20; 16], &0u32.to_le_bytes(), &4000u16.to_le_bytes()].concat();
    let id = |count: u8, addresses: &[u8]| [b"RDL1", &[7; 32][..], &[count], addresses].concat();
    vec![id(1, &v4), id(2, &[v4.clone(), v6].concat()), id(0, &[])]
}
