//! Questions about ranks that are in progress: who was asked what, and when to ask somebody else.

use super::{
    Answer, Liveness,
    wire::{Asked, Reading, Sight},
};
use crate::plan::Rank;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long the rank itself has for an answer before its process is looked at.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// When the asker is told that nobody answered.
const GIVE_UP_AFTER: Duration = Duration::from_millis(1800);

/// What a question waits for. Questions that nobody answers cost their time and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Inquiries {
    next: u64,
    open: BTreeMap<u64, Question>,
}

#[derive(Debug)]
struct Question {
    about: Rank,
    kind: Kind,
    asked: Instant,
    looked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// For the engine: what does the rank do?
    Call(Asked),
    /// For membership: does its process run?
    Life,
}

/// What to do now.
#[derive(Debug)]
pub(crate) enum Step {
    /// Look at the rank's process, or have somebody else look, and report under this number.
    Look { id: u64, about: Rank, asked: Option<Asked> },
    /// The engine's answer.
    Answer(Answer),
    /// Membership's answer.
    Sight(Rank, Sight),
}

impl Inquiries {
    /// The number of a new question to the rank itself.
    pub(crate) fn ask(&mut self, about: Rank, asked: Asked, now: Instant) -> u64 {
        self.insert(Question { about, kind: Kind::Call(asked), asked: now, looked: false })
    }
    /// The number of a new question to whoever sees the rank's process.
    pub(crate) fn examine(&mut self, about: Rank, now: Instant) -> u64 {
        self.insert(Question { about, kind: Kind::Life, asked: now, looked: true })
    }
    /// The rank itself answered.
    pub(crate) fn handle_answer(&mut self, id: u64, from: Rank, answer: Answer) -> Option<Step> {
        let asked = self.open.get(&id)?;
        let fits = asked.about == from
            && answer.about == from
            && matches!(asked.kind, Kind::Call(call) if (call.comm, call.seq) == (answer.comm, answer.seq));
        if !fits {
            return None;
        }
        self.open.remove(&id);
        Some(Step::Answer(answer))
    }
    /// Somebody looked, also at the page of a process that is stopped.
    pub(crate) fn handle_sight(
        &mut self,
        id: u64,
        about: Rank,
        sight: Sight,
        reading: Option<Reading>,
    ) -> Option<Step> {
        let question = self.open.get(&id).filter(|question| question.about == about)?;
        match question.kind {
            Kind::Life => {
                self.open.remove(&id);
                Some(Step::Sight(about, sight))
            }
            // A process that runs may still answer, one that is gone is membership's to name.
            Kind::Call(_) if sight != Sight::Stopped => None,
            Kind::Call(_) => {
                let reading = reading.unwrap_or_default();
                self.open.remove(&id).map(|question| question.unanswered(Liveness::Stopped, reading))
            }
        }
    }
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.open.values().map(Question::due).min()
    }
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<Step> {
        let due: Vec<u64> = self.open.iter().filter(|(_, q)| q.due() <= now).map(|(id, _)| *id).collect();
        let mut steps = Vec::new();
        for id in due {
            let Some(question) = self.open.get_mut(&id) else { continue };
            if !question.looked {
                question.looked = true;
                let asked = match question.kind {
                    Kind::Call(asked) => Some(asked),
                    Kind::Life => None,
                };
                steps.push(Step::Look { id, about: question.about, asked });
            } else if let Some(question) = self.open.remove(&id) {
                steps.push(question.unanswered(Liveness::NoAnswer, Reading::default()));
            }
        }
        steps
    }

    fn insert(&mut self, question: Question) -> u64 {
        self.next += 1;
        self.open.insert(self.next, question);
        self.next
    }
}

impl Question {
    fn due(&self) -> Instant {
        self.asked + if self.looked { GIVE_UP_AFTER } else { LOOK_AFTER }
    }
    fn unanswered(self, liveness: Liveness, reading: Reading) -> Step {
        match self.kind {
            Kind::Life => Step::Sight(self.about, Sight::Hidden),
            Kind::Call(Asked { comm, seq, .. }) => {
                let Reading { entered, completed, call } = reading;
                Step::Answer(Answer { about: self.about, comm, seq, entered, completed, call, liveness })
            }
        }
    }
}
