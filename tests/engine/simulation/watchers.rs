//! What the ranks' watchers would do: carry offers and news, answer inquiries, notice deaths and goodbyes.

use super::Cluster;
use rondel::{
    bootstrap::{Answer, Asked, Liveness, Notice},
    engine::Command,
    error::{Cause, Failure},
    plan::Rank,
};
use std::{sync::Arc, time::Duration};

/// A notice that reaches its rank at a given time.
pub(super) struct Letter {
    due: Duration,
    to: usize,
    notice: Notice,
}

impl Cluster {
    /// Every other rank's watcher learns that a rank's process has ended.
    pub(crate) fn report_end(&mut self, rank: usize, after: Duration) {
        for to in (0..self.engines.len()).filter(|&to| to != rank) {
            let failure = Failure {
                origin: to as Rank,
                comm: None,
                cause: Cause::ProcessEnded { rank: rank as Rank, how: "killed by signal 9".into() },
                waiting: None,
                agreed: false,
            };
            self.send(to, after, Notice::Failed(Arc::new(failure)));
        }
    }

    /// A rank says goodbye to the job: it closes its communicators, and every other rank's watcher hears of it.
    pub(crate) fn leave(&mut self, rank: usize) {
        self.left[rank] = true;
        for team in 0..self.teams.len() {
            if let Some(comm) = self.teams[team].comms[rank] {
                self.engines[rank].close(comm);
            }
        }
        for to in (0..self.engines.len()).filter(|&to| to != rank) {
            self.send(to, Duration::ZERO, Notice::Left(rank as Rank));
        }
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.left[rank]
    }

    fn send(&mut self, to: usize, after: Duration, notice: Notice) {
        self.letters.push(Letter { due: self.now.saturating_add(after), to, notice });
    }

    /// Hands out the notices that are due. Returns whether there were any.
    pub(super) fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(at) = self.letters.iter().position(|letter| letter.due <= self.now) {
            let Letter { to, notice, .. } = self.letters.remove(at);
            if self.alive[to] {
                self.engines[to].handle_notice(notice);
            }
            any = true;
        }
        any
    }

    /// Does for a rank what its watcher would do. Returns whether it had to do anything.
    pub(super) fn carry(&mut self, from: usize) -> bool {
        if !self.engines[from].has_commands() {
            return false;
        }
        let commands: Vec<Command> = self.engines[from].take_commands().collect();
        for command in commands {
            match command {
                Command::Offer { to, offer } => {
                    let notice = Notice::Offer { from: from as Rank, offer };
                    self.send(to as usize, Duration::ZERO, notice);
                }
                Command::Inquire { about, asked: Asked { comm, seq, .. } } => {
                    let Some(after) = self.answers_after else { continue };
                    let asked = about as usize;
                    let answer = Answer {
                        about,
                        comm,
                        seq,
                        entered: self.last.get(&(asked, comm)).copied().unwrap_or(0),
                        completed: 0,
                        call: self.entered.get(&(asked, comm, seq)).copied(),
                        liveness: if self.alive[asked] { Liveness::Alive } else { Liveness::NoAnswer },
                    };
                    self.send(from, after, Notice::Answer(answer));
                }
                Command::Declare(failure) => {
                    for to in (0..self.engines.len()).filter(|&to| to != from) {
                        self.send(to, Duration::ZERO, Notice::Failed(failure.clone()));
                    }
                }
            }
        }
        true
    }
}
