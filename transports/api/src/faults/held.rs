//! Events that are held back, in the order that the contract leaves them.

use crate::{Event, LaneId, random::Random};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Direction {
    Send,
    Recv,
}

/// Queues of events. `Established` passes at once through a queue of its own, `Closed` waits for the lane's others.
#[derive(Default)]
pub(super) struct Held {
    queues: BTreeMap<(LaneId, Queue), VecDeque<Waiting>>,
    open: BTreeSet<LaneId>,
    admitted: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    Post(Direction),
    /// `Established` and `Closed`, in this order.
    Lane,
}

struct Waiting {
    /// Which event this is, counted from the first that was ever admitted.
    number: u64,
    due: u64,
    event: Event,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
    /// Whether the caller has seen `Established`, and not `Closed`.
    pub(super) fn is_open(&self, lane: LaneId) -> bool {
        self.open.contains(&lane)
    }
    /// `direction` is that of the event's post, if it has one.
    pub(super) fn push(&mut self, lane: LaneId, direction: Option<Direction>, due: u64, event: Event) {
        let queue = self.queues.entry((lane, direction.map_or(Queue::Lane, Queue::Post))).or_default();
        queue.push_back(Waiting { number: self.admitted, due, event });
        self.admitted += 1;
    }
    /// Delivers what is due: in the order of arrival, or in a random one. Returns how many events overtook an older one.
    pub(super) fn release(
        &mut self,
        now: u64,
        mut shuffle: Option<&mut Random>,
        events: &mut Vec<Event>,
    ) -> u64 {
        let mut overtaken = 0;
        loop {
            let ready: Vec<_> = self.ready(now).collect();
            let chosen = match &mut shuffle {
                Some(random) if !ready.is_empty() => ready.get(random.below(ready.len() as u64) as usize),
                _ => ready.iter().min_by_key(|&&(_, number)| number),
            };
            let Some(&(key, number)) = chosen else { return overtaken };
            let oldest =
                self.queues.values().filter_map(|queue| queue.front()).map(|first| first.number).min();
            overtaken += u64::from(oldest.is_some_and(|oldest| oldest < number));
            events.extend(self.pop(key));
        }
    }

    /// The queues whose first event may be delivered, with its number.
    fn ready(&self, now: u64) -> impl Iterator<Item = ((LaneId, Queue), u64)> {
        self.queues.iter().filter_map(move |(&(lane, queue), waiting)| {
            let first = waiting.front().filter(|first| first.due <= now)?;
            let is_end = matches!(first.event, Event::Closed { .. });
            let others = [Queue::Post(Direction::Send), Queue::Post(Direction::Recv)];
            let must_wait = is_end && others.iter().any(|&other| self.queues.contains_key(&(lane, other)));
            (!must_wait).then_some(((lane, queue), first.number))
        })
    }
    fn pop(&mut self, key: (LaneId, Queue)) -> Option<Event> {
        let queue = self.queues.get_mut(&key)?;
        let event = queue.pop_front()?.event;
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        match event {
            Event::Established { lane } => drop(self.open.insert(lane)),
            Event::Closed { lane, .. } => drop(self.open.remove(&lane)),
            Event::Done { .. } | Event::Failed { .. } => {}
        }
        Some(event)
    }
}
