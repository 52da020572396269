//! The model as flat buckets: what travels together, and who owns which part of it.
//!
//! A bucket holds the parameters of one or more consecutive blocks, one behind the other. Small
//! blocks share a bucket, because every call on the network has a price of its own; buckets are
//! formed from the last block backwards, which is the order in which backward fills them.
//!
//! Each bucket is cut into as many parts as there are workers, as evenly as can be where parts end
//! at a whole number of chunks of a tensor: then every chunk of the gradient norm lies on one
//! worker ([`CHUNK_LEN`]). A mirror (the head's copy of a tied embedding) is cut exactly where its
//! owner is, so that the worker that owns a row owns the copy of it too and nothing travels when
//! one follows the other.

use lockstep_model::{Blueprint, Param};
use lockstep_optim::{CHUNK_LEN, Slot};
use std::ops::Range;

/// Consecutive blocks whose parameters lie in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Which blocks.
    pub blocks: Range<usize>,
    /// Number of parameters, mirrors included.
    pub len: usize,
    /// Where the part of each worker begins, and where the last one ends.
    pub cuts: Vec<usize>,
    /// Where each block begins.
    starts: Vec<usize>,
}

/// A mirror and its owner: (bucket, elements).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPair {
    /// The copy.
    pub mirror: (usize, Range<usize>),
    /// The parameter.
    pub owner: (usize, Range<usize>),
}

/// All buckets of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// In the order of blocks.
    pub list: Vec<Bucket>,
    /// Copies that follow parameters in other buckets.
    pub mirrors: Vec<MirrorPair>,
    bucket_of: Vec<usize>,
}

impl Bucket {
    /// Where a block's parameters lie.
    pub fn block(&self, block: usize) -> Range<usize> {
        let index = block - self.blocks.start;
        self.starts[index]..self.starts[index + 1]
    }

    /// The part of a worker.
    pub fn part(&self, worker: usize) -> Range<usize> {
        self.cuts[worker]..self.cuts[worker + 1]
    }

    /// The length of every worker's part.
    pub fn part_lens(&self) -> Vec<usize> {
        self.cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

impl Buckets {
    /// Cuts a model into buckets of at least `min_len` parameters, where there are as many, and
    /// those into parts for `num_workers`.
    pub fn new(blueprint: &Blueprint, min_len: usize, num_workers: usize) -> Self {
        let mut list = Vec::new();
        let mut end = blueprint.blocks.len();
        let has_mirror =
            |block: usize| blueprint.blocks[block].params().iter().any(|p| p.mirror_of.is_some());
        while end > 0 {
            let mut start = end - 1;
            let mut len = blueprint.blocks[start].num_params();
            while start > 0 && len < min_len && !has_mirror(start) && !has_mirror(start - 1) {
                start -= 1;
                len += blueprint.blocks[start].num_params();
            }
            list.push(Bucket::new(blueprint, start..end));
            end = start;
        }
        list.reverse();
        let blocks_of = |(index, bucket): (usize, &Bucket)| vec![index; bucket.blocks.len()];
        let bucket_of = list.iter().enumerate().flat_map(blocks_of).collect();
        let mut buckets = Self { list, mirrors: Vec::new(), bucket_of };
        buckets.mirrors = blueprint
            .mirrors()
            .map(|pair| MirrorPair {
                mirror: buckets.place(pair.mirror_block, pair.mirror),
                owner: buckets.place(pair.owner_block, pair.owner),
            })
            .collect();
        buckets.cut(blueprint, num_workers);
        buckets
    }

    /// Which bucket a block is in.
    pub fn of_block(&self, block: usize) -> usize {
        self.bucket_of[block]
    }

    /// Where a parameter lies.
    pub fn place(&self, block: usize, param: &Param) -> (usize, Range<usize>) {
        let bucket = self.bucket_of[block];
        let start = self.list[bucket].block(block).start + param.range().start;
        (bucket, start..start + param.len())
    }

    /// Number of parameters, mirrors included.
    pub fn num_params(&self) -> usize {
        self.list.iter().map(|bucket| bucket.len).sum()
    }

    /// The longest bucket.
    pub fn max_len(&self) -> usize {
        self.list.iter().map(|bucket| bucket.len).max().unwrap_or(0)
    }

    /// The longest part that the worker owns of any bucket.
    pub fn max_part_len(&self, worker: usize) -> usize {
        self.list.iter().map(|bucket| bucket.part(worker).len()).max().unwrap_or(0)
    }

    /// What an optimizer steps on the worker that owns `part(bucket)` of each bucket: every
    /// parameter but mirrors, or a piece of it, relative to that part.
    pub fn slots(
        &self,
        blueprint: &Blueprint,
        part: impl Fn(&Bucket) -> Range<usize>,
    ) -> Vec<Slot> {
        let slot = |(block, param): (usize, &Param)| {
            let (bucket, range) = self.place(block, param);
            let own = part(&self.list[bucket]);
            let (start, end) = (range.start.max(own.start), range.end.min(own.end));
            (start < end).then(|| Slot {
                block: bucket,
                name: param.name.clone(),
                range: start - own.start..end - own.start,
                first: start - range.start,
                decay: param.decay,
            })
        };
        blueprint.owned_params().filter_map(slot).collect()
    }

    fn cut(&mut self, blueprint: &Blueprint, num_workers: usize) {
        let ends = 0..=num_workers;
        for bucket in &mut self.list {
            let len = bucket.len;
            let ideal = |worker: usize| len * worker / num_workers;
            bucket.cuts = ends.clone().map(|w| bucket.nearest_cut(blueprint, ideal(w))).collect();
        }
        for MirrorPair { mirror, owner } in &self.mirrors {
            let follow = |&cut: &usize| {
                mirror.1.start + cut.clamp(owner.1.start, owner.1.end) - owner.1.start
            };
            let mut cuts: Vec<_> = self.list[owner.0].cuts.iter().map(follow).collect();
            cuts[0] = 0;
            cuts[num_workers] = self.list[mirror.0].len;
            self.list[mirror.0].cuts = cuts;
        }
    }
}

impl Bucket {
    fn new(blueprint: &Blueprint, blocks: Range<usize>) -> Self {
        let mut starts = vec![0];
        for block in &blueprint.blocks[blocks.clone()] {
            starts.push(starts[starts.len() - 1] + block.num_params());
        }
        let len = starts[starts.len() - 1];
        Self { blocks, len, cuts: Vec::new(), starts }
    }

    /// The place nearest to `ideal` where a tensor begins, ends or may be cut.
    fn nearest_cut(&self, blueprint: &Blueprint, ideal: usize) -> usize {
        for block in self.blocks.clone() {
            for param in blueprint.blocks[block].params() {
                let start = self.block(block).start + param.range().start;
                if ideal <= start + param.len() {
                    let offset = ideal - start;
                    let rounded = (offset + CHUNK_LEN / 2) / CHUNK_LEN * CHUNK_LEN;
                    // The end of the tensor may be nearer than the end of the chunk.
                    let to_end = param.len() - offset;
                    let is_end_nearer = to_end < offset.abs_diff(rounded);
                    return start
                        + if is_end_nearer { param.len() } else { rounded.min(param.len()) };
                }
            }
        }
        self.len
    }
}
