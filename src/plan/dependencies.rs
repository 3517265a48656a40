//! Which earlier steps a step must wait for, derived from the spans that they touch.
//!
//! Every chunk remembers its last writer and who has read it since. One pass over the program, each step paying for the
//! chunks that it touches.

use super::{Dependency, Span};
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// A step that touched a chunk, by way of which span.
#[derive(Clone, Copy)]
struct Access {
    step: u32,
    span: Span,
}

#[derive(Clone, Copy)]
struct Reader {
    access: Access,
    next: u32,
}

#[derive(Clone, Copy)]
struct Chunk {
    writer: Option<Access>,
    /// Head of the list of those who have read it since.
    readers: u32,
}

/// Collects the dependencies of a program, step by step.
pub(super) struct Tracker {
    chunks: Vec<Chunk>,
    readers: Vec<Reader>,
    /// Dependencies of all steps so far, and for each step where its own end.
    dependencies: Vec<Dependency>,
    ends: Vec<u32>,
    current: Vec<Dependency>,
    /// For each earlier step, whose dependency it was last, and which of them.
    seen: Vec<(u32, u32)>,
}

impl Tracker {
    /// `chunks`: chunks of all buffers together; `steps`: of the program.
    pub(super) fn new(chunks: usize, steps: usize) -> Self {
        Tracker {
            chunks: vec![Chunk { writer: None, readers: NONE }; chunks],
            readers: Vec::with_capacity(steps),
            dependencies: Vec::with_capacity(2 * steps),
            ends: Vec::with_capacity(steps),
            current: Vec::new(),
            seen: vec![(NONE, 0); steps],
        }
    }

    /// The next step reads and writes these spans; each comes with the number of its first chunk among all chunks.
    /// Returns the range of its dependencies.
    pub(super) fn step(&mut self, reads: &[(u32, Span)], write: Option<(u32, Span)>) -> Range<u32> {
        let step = self.ends.len() as u32;
        for &(first, span) in reads {
            for chunk in first..first + span.len {
                if let Some(writer) = self.chunks[chunk as usize].writer {
                    self.wait_for(step, writer, span);
                }
            }
        }
        if let Some((first, span)) = write {
            for chunk in first..first + span.len {
                self.overwrite(step, chunk, span);
            }
        }
        for &(first, span) in reads {
            for chunk in &mut self.chunks[first as usize..(first + span.len) as usize] {
                let next = chunk.readers;
                chunk.readers = self.readers.len() as u32;
                self.readers.push(Reader { access: Access { step, span }, next });
            }
        }
        if let Some((first, span)) = write {
            self.chunks[first as usize..(first + span.len) as usize]
                .fill(Chunk { writer: Some(Access { step, span }), readers: NONE });
        }
        self.finish()
    }

    /// Every dependency of every step.
    pub(super) fn into_dependencies(self) -> Box<[Dependency]> {
        self.dependencies.into()
    }

    /// Readers wait for the last writer themselves, so a writer waits for it only when there are none.
    fn overwrite(&mut self, step: u32, chunk: u32, span: Span) {
        let Chunk { writer, mut readers } = self.chunks[chunk as usize];
        if readers == NONE
            && let Some(writer) = writer
        {
            self.wait_for(step, writer, span);
        }
        while readers != NONE {
            let Reader { access, next } = self.readers[readers as usize];
            self.wait_for(step, access, span);
            readers = next;
        }
    }

    /// Slices of different spans do not coincide, so only equal spans depend slice by slice.
    fn wait_for(&mut self, step: u32, earlier: Access, span: Span) {
        let whole = earlier.span != span;
        let seen = &mut self.seen[earlier.step as usize];
        if seen.0 == step {
            self.current[seen.1 as usize].whole |= whole;
        } else {
            *seen = (step, self.current.len() as u32);
            self.current.push(Dependency { step: earlier.step, whole });
        }
    }

    /// Stores the current step's dependencies without those that another one of them has itself.
    fn finish(&mut self) -> Range<u32> {
        /// Longer lists are not searched, which keeps the derivation near-linear.
        const SEARCHED: usize = 8;
        let start = self.dependencies.len() as u32;
        let step = self.ends.len() as u32;
        if self.current.len() > 1 {
            for i in 0..self.current.len() {
                let middle = self.current[i];
                let theirs = self.range_of(middle.step);
                for earlier in theirs.start..theirs.end.min(theirs.start + SEARCHED) {
                    let earlier = self.dependencies[earlier];
                    let seen = self.seen[earlier.step as usize];
                    if seen.0 == step {
                        let ours = self.current[seen.1 as usize];
                        if !ours.whole || middle.whole || earlier.whole {
                            self.seen[earlier.step as usize].0 = NONE;
                        }
                    }
                }
            }
        }
        for dependency in self.current.drain(..) {
            if self.seen[dependency.step as usize].0 == step {
                self.dependencies.push(dependency);
            }
        }
        let end = self.dependencies.len() as u32;
        self.ends.push(end);
        start..end
    }

    fn range_of(&self, step: u32) -> Range<usize> {
        let start = if step == 0 { 0 } else { self.ends[step as usize - 1] };
        start as usize..self.ends[step as usize] as usize
    }
}
