//! What goes over a connection once its handshake is done: frames, one message each.
//!
//! A frame is a version (2 bytes), a kind (2 bytes), the length of its body (4 bytes) and the body. [`parse`] takes
//! foreign bytes: it refuses a length above the kind's limit as soon as the header is there, and never panics.

use super::{
    Answer, LaneOffer, Liveness, Member,
    codec::{CodecError, MAX_BLOB, MAX_MEMBER, Reader, Writer},
};
pub use crate::membership::{News, Sight};
use crate::{
    engine::call::Call,
    plan::{Collective, Rank},
};
use rondel_transport_api::handshake::VERSION;
use std::{sync::Arc, time::Duration};

/// Bytes before the body.
pub const HEADER: usize = 8;
/// Most ranks of one job.
pub const MAX_RANKS: u32 = 1 << 16;
/// Longest body of the messages between watchers.
const MAX_LINK_BODY: usize = MAX_BLOB + 4096;

/// One frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Message {
    /// To the root: let me join.
    Join(Join),
    /// From the root: everybody is there.
    Table {
        /// Identifies the job.
        job: u64,
        /// Everybody, in the order of their ranks.
        seats: Vec<Seat>,
    },
    /// From the root: no, and why.
    Rejected(String),
    /// From the root: the time is over.
    Missing {
        /// Who did not come.
        ranks: Vec<Rank>,
        /// How long the root waited since the first rank came.
        waited: Duration,
    },
    /// First message of a control link, both ways.
    Link {
        /// The job that the sender belongs to.
        job: u64,
        /// Who the sender thinks that the receiver is: addresses may be reused, or mean another host here.
        to: Rank,
        /// How many of the receiver's offers the sender has.
        offers: u64,
    },
    /// I am here.
    Heartbeat {
        /// How many of the receiver's offers the sender has.
        offers: u64,
    },
    /// Half of a lane.
    Offer {
        /// Counts the offers from this sender to this receiver, from 1.
        number: u64,
        /// The half.
        offer: LaneOffer,
    },
    /// What are you doing?
    Inquiry {
        /// Comes back in the answer.
        id: u64,
        /// What is asked about.
        asked: Asked,
    },
    /// The answer to an inquiry.
    Answer {
        /// The inquiry's.
        id: u64,
        /// What the asked rank is doing.
        answer: Answer,
    },
    /// Look at a process on your host.
    Look {
        /// Comes back in the report.
        id: u64,
        /// Whose process.
        about: Rank,
        /// What to look for in its page if it is stopped; `None`: nothing.
        asked: Option<Asked>,
    },
    /// What a look has shown.
    Seen {
        /// The look's.
        id: u64,
        /// Whose process.
        about: Rank,
        /// What it does.
        sight: Sight,
        /// What its page says, if it was asked for and could be read.
        reading: Option<Reading>,
    },
    /// Something that everybody has to know.
    News(News),
}

/// A call that somebody asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The communicator.
    pub comm: u64,
    /// The number of the call.
    pub seq: u64,
    /// A send or a receive, and the rank of the communicator that it names; these are numbered for each rank and direction.
    /// `None`: a collective.
    pub between: Option<(Collective, Rank)>,
}

impl Asked {
    /// A collective.
    pub fn collective(comm: u64, seq: u64) -> Self {
        Asked { comm, seq, between: None }
    }
    /// Whether this is the call.
    pub fn is(&self, call: &Call) -> bool {
        let fits = match self.between {
            None => !call.collective.is_point_to_point(),
            Some((collective, peer)) => (call.collective, call.root) == (collective, peer),
        };
        fits && call.seq == self.seq
    }
}

/// What a rank's status page says about the call that was asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The last collective that it entered; 0: none.
    pub entered: u64,
    /// The last collective that it completed; 0: none.
    pub completed: u64,
    /// What it called under the number, if it still remembers.
    pub call: Option<Call>,
}

/// A rank that wants to join.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// How many ranks it was told there are.
    pub nranks: u32,
    /// How long it is going to wait.
    pub patience: Duration,
    /// Who it is.
    pub seat: Seat,
    /// Why it cannot take part after all, which all others are to know.
    pub obstacle: Option<String>,
}

/// A member of the job with what only watchers need to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    /// What everybody knows.
    pub member: Member,
    /// Its process, for those who can see it.
    pub process: ProcessId,
}

/// A process, distinguishable from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Identifies the namespace that `Member::pid` counts in; 0: unknown.
    pub namespace: u64,
    /// When it was started, in clock ticks since the boot; 0: unknown.
    pub started: u64,
}

/// Takes one frame from the front of foreign bytes: the message and how many bytes it took, or `None` if its end has not
/// arrived yet.
pub fn parse(bytes: &[u8]) -> Result<Option<(Message, usize)>, CodecError> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
    let mut header = Reader::new(header);
    let version = header.u16("version")?;
    if version != VERSION {
        return Err(CodecError::Invalid { what: "frame version", given: u64::from(version) });
    }
    let kind = header.u16("kind")?;
    let given = header.u32("length")? as usize;
    let limit = match kind {
        1 => MAX_MEMBER,
        2 => MAX_RANKS as usize * 1024,
        4 => MAX_RANKS as usize * 4 + 64,
        _ => MAX_LINK_BODY,
    };
    if given > limit {
        return Err(CodecError::TooLong { what: "frame", given, limit });
    }
    let Some(body) = rest.get(..given) else { return Ok(None) };
    let mut body = Reader::new(body);
    let message = parse_body(kind, &mut body)?;
    body.finish()?;
    Ok(Some((message, HEADER + given)))
}

fn parse_body(kind: u16, r: &mut Reader<'_>) -> Result<Message, CodecError> {
    Ok(match kind {
        1 => Message::Join(Join {
            nranks: r.u32("number of ranks")?,
            patience: r.duration("patience")?,
            seat: parse_seat(r)?,
            obstacle: r.option("whether there is an obstacle", |r| r.text("obstacle"))?,
        }),
        2 => {
            let job = r.u64("job")?;
            let n = parse_nranks(r)?;
            Message::Table { job, seats: (0..n).map(|_| parse_seat(r)).collect::<Result<_, _>>()? }
        }
        3 => Message::Rejected(r.text("reason")?),
        4 => {
            let n = parse_nranks(r)?;
            let ranks = (0..n).map(|_| r.u32("missing rank")).collect::<Result<_, _>>()?;
            Message::Missing { ranks, waited: r.duration("waited")? }
        }
        5 => Message::Link { job: r.u64("job")?, to: r.u32("receiver")?, offers: r.u64("offers")? },
        6 => Message::Heartbeat { offers: r.u64("offers")? },
        7 => Message::Offer { number: r.u64("offer number")?, offer: r.lane_offer()? },
        8 => Message::Inquiry { id: r.u64("inquiry")?, asked: parse_asked(r)? },
        9 => Message::Answer { id: r.u64("inquiry")?, answer: parse_answer(r)? },
        10 => Message::Look {
            id: r.u64("inquiry")?,
            about: r.u32("rank")?,
            asked: r.option("whether a call is asked for", parse_asked)?,
        },
        11 => {
            let (id, about) = (r.u64("inquiry")?, r.u32("rank")?);
            let sight = match r.u8("sight")? {
                0 => Sight::Running,
                1 => Sight::Stopped,
                2 => Sight::Gone,
                3 => Sight::Hidden,
                other => return Err(CodecError::Invalid { what: "sight", given: u64::from(other) }),
            };
            let reading = r.option("whether the page was read", parse_reading)?;
            Message::Seen { id, about, sight, reading }
        }
        12 => Message::News(News::Failed(Arc::new(r.failure()?))),
        13 => Message::News(News::Left(r.u32("rank")?)),
        other => return Err(CodecError::Invalid { what: "frame kind", given: u64::from(other) }),
    })
}

/// Elements are parsed lazily, and the first missing byte ends the parse: a false number allocates nothing.
fn parse_nranks(r: &mut Reader<'_>) -> Result<u32, CodecError> {
    let n = r.u32("number of ranks")?;
    if n > MAX_RANKS {
        return Err(CodecError::TooLong {
            what: "number of ranks",
            given: n as usize,
            limit: MAX_RANKS as usize,
        });
    }
    Ok(n)
}

fn parse_asked(r: &mut Reader<'_>) -> Result<Asked, CodecError> {
    let (comm, seq) = (r.u64("communicator")?, r.u64("call number")?);
    let between = r.option("whether a send or receive is asked for", |r| {
        let code = r.u8("send or receive")?;
        let collective = Collective::from_code(code).filter(|collective| collective.is_point_to_point());
        let unknown = CodecError::Invalid { what: "send or receive", given: u64::from(code) };
        Ok((collective.ok_or(unknown)?, r.u32("peer")?))
    })?;
    Ok(Asked { comm, seq, between })
}

fn write_asked(w: &mut Writer, asked: &Asked) {
    w.u64(asked.comm).u64(asked.seq).option(asked.between, |w, (collective, peer)| {
        w.u8(collective as u8).u32(peer);
    });
}

fn parse_seat(r: &mut Reader<'_>) -> Result<Seat, CodecError> {
    Ok(Seat {
        member: r.member()?,
        process: ProcessId { namespace: r.u64("process namespace")?, started: r.u64("process start")? },
    })
}

fn parse_reading(r: &mut Reader<'_>) -> Result<Reading, CodecError> {
    Ok(Reading {
        entered: r.u64("entered")?,
        completed: r.u64("completed")?,
        call: r.option("whether a call is known", Reader::call)?,
    })
}

fn parse_answer(r: &mut Reader<'_>) -> Result<Answer, CodecError> {
    let (about, comm, seq) = (r.u32("rank")?, r.u64("communicator")?, r.u64("call number")?);
    let Reading { entered, completed, call } = parse_reading(r)?;
    Ok(Answer {
        about,
        comm,
        seq,
        entered,
        completed,
        call,
        liveness: match r.u8("liveness")? {
            0 => Liveness::Alive,
            1 => Liveness::Stopped,
            2 => Liveness::NoAnswer,
            other => return Err(CodecError::Invalid { what: "liveness", given: u64::from(other) }),
        },
    })
}

impl Message {
    /// The frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        let kind = self.encode_body(&mut w);
        let body = w.into_bytes();
        let mut frame = Writer::new();
        frame.u16(VERSION).u16(kind).u32(body.len() as u32).raw(&body);
        frame.into_bytes()
    }

    fn encode_body(&self, w: &mut Writer) -> u16 {
        match self {
            Message::Join(join) => {
                w.u32(join.nranks).duration(join.patience);
                write_seat(w, &join.seat);
                w.option(join.obstacle.as_deref(), |w, why| {
                    w.text(why);
                });
                1
            }
            Message::Table { job, seats } => {
                w.u64(*job).u32(seats.len() as u32);
                seats.iter().for_each(|seat| write_seat(w, seat));
                2
            }
            Message::Rejected(why) => {
                w.text(why);
                3
            }
            Message::Missing { ranks, waited } => {
                w.u32(ranks.len() as u32);
                ranks.iter().for_each(|&rank| {
                    w.u32(rank);
                });
                w.duration(*waited);
                4
            }
            Message::Link { job, to, offers } => {
                w.u64(*job).u32(*to).u64(*offers);
                5
            }
            Message::Heartbeat { offers } => {
                w.u64(*offers);
                6
            }
            Message::Offer { number, offer } => {
                w.u64(*number).lane_offer(offer);
                7
            }
            Message::Inquiry { id, asked } => {
                w.u64(*id);
                write_asked(w, asked);
                8
            }
            Message::Answer { id, answer } => {
                w.u64(*id);
                write_answer(w, answer);
                9
            }
            Message::Look { id, about, asked } => {
                w.u64(*id).u32(*about).option(asked.as_ref(), write_asked);
                10
            }
            Message::Seen { id, about, sight, reading } => {
                w.u64(*id).u32(*about).u8(*sight as u8).option(reading.as_ref(), |w, reading| {
                    write_reading(w, reading.entered, reading.completed, reading.call.as_ref());
                });
                11
            }
            Message::News(News::Failed(failure)) => {
                w.failure(failure);
                12
            }
            Message::News(News::Left(rank)) => {
                w.u32(*rank);
                13
            }
        }
    }
}

fn write_seat(w: &mut Writer, seat: &Seat) {
    w.member(&seat.member).u64(seat.process.namespace).u64(seat.process.started);
}

fn write_reading(w: &mut Writer, entered: u64, completed: u64, call: Option<&Call>) {
    w.u64(entered).u64(completed).option(call, |w, call| {
        w.call(call);
    });
}

fn write_answer(w: &mut Writer, answer: &Answer) {
    w.u32(answer.about).u64(answer.comm).u64(answer.seq);
    write_reading(w, answer.entered, answer.completed, answer.call.as_ref());
    w.u8(match answer.liveness {
        Liveness::Alive => 0,
        Liveness::Stopped => 1,
        Liveness::NoAnswer => 2,
    });
}
