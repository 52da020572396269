//! Parameter buckets: consecutive blocks in one flat buffer, and the shards of each bucket.
//!
//! Small blocks share a bucket, because every collective has a fixed cost; buckets are formed from
//! the last block backwards, the order in which backward fills them (as in PyTorch DDP, Li et al.
//! 2020).
//!
//! Each bucket is cut into one shard per data-parallel rank, as evenly as possible with cuts at
//! whole chunks of a tensor: then every chunk of the gradient norm lies on one rank
//! ([`CHUNK_LEN`]). A mirror (the output head's copy of a tied embedding) is cut exactly where its
//! owner is, so the rank that owns a row also owns its copy and copying needs no communication.

use lockstep_model::formats::floats;
use lockstep_model::{Blueprint, Param};
use lockstep_optim::{CHUNK_LEN, Slot};
use lockstep_tensor::device::Dtype;
use std::ops::Range;

/// Consecutive blocks whose parameters share one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Blocks of the bucket.
    pub blocks: Range<usize>,
    /// Number of parameters, mirrors included.
    pub len: usize,
    /// Start of each rank's shard, and the end of the last.
    pub cuts: Vec<usize>,
    /// Start of each block.
    starts: Vec<usize>,
}

/// A mirror and its owner, each as (bucket, elements).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPair {
    /// The mirror.
    pub mirror: (usize, Range<usize>),
    /// The owner.
    pub owner: (usize, Range<usize>),
}

impl MirrorPair {
    /// Whether the mirror is in these buckets.
    pub fn is_mirror_here(&self) -> bool {
        !self.mirror.1.is_empty()
    }

    /// Whether the owner is in these buckets.
    pub fn is_owner_here(&self) -> bool {
        !self.owner.1.is_empty()
    }
}

/// All buckets of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Buckets in block order.
    pub list: Vec<Bucket>,
    /// Mirrors and their owners.
    pub mirrors: Vec<MirrorPair>,
    bucket_of: Vec<usize>,
}

impl Bucket {
    /// Range of a block's parameters.
    pub fn block(&self, block: usize) -> Range<usize> {
        let index = block - self.blocks.start;
        self.starts[index]..self.starts[index + 1]
    }

    /// Shard of a rank.
    pub fn part(&self, worker: usize) -> Range<usize> {
        self.cuts[worker]..self.cuts[worker + 1]
    }

    /// Length of every rank's shard.
    pub fn part_lens(&self) -> Vec<usize> {
        self.part_lens_of(&(0..self.len))
    }

    /// Length of the intersection of a span with every rank's shard.
    pub fn part_lens_of(&self, span: &Range<usize>) -> Vec<usize> {
        let cuts = self.cuts.iter().map(|cut| *cut.clamp(&span.start, &span.end));
        let cuts: Vec<usize> = cuts.collect();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

impl Buckets {
    /// Groups the blocks of a model into buckets of at least `min_len` parameters and cuts each
    /// into `num_workers` shards.
    pub fn new(blueprint: &Blueprint, min_len: usize, num_workers: usize) -> Self {
        Self::between(blueprint, min_len, num_workers, &[])
    }

    /// Like [`Self::new`], with no bucket across a pipeline stage boundary: `cuts` are the first
    /// blocks of all stages but the first.
    pub fn between(
        blueprint: &Blueprint,
        min_len: usize,
        num_workers: usize,
        cuts: &[usize],
    ) -> Self {
        let mut list = Vec::new();
        let mut end = blueprint.blocks.len();
        let has_mirror =
            |block: usize| blueprint.blocks[block].params().iter().any(|p| p.mirror_of.is_some());
        let is_empty = |block: usize| blueprint.blocks[block].num_params() == 0;
        let may_join = |a: usize, b: usize| !has_mirror(a) && !has_mirror(b);
        while end > 0 {
            let mut start = end - 1;
            let mut len = blueprint.blocks[start].num_params();
            // A block without parameters needs no bucket of its own.
            while start > 0
                && !cuts.contains(&start)
                && (is_empty(start - 1) || (len < min_len && may_join(start, start - 1)))
            {
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
        for pair in blueprint.mirrors() {
            let mirror = buckets.place(pair.mirror_block, pair.mirror);
            let owner = buckets.place(pair.owner_block, pair.owner);
            match buckets.mirrors.last_mut() {
                // Pieces of one tensor are adjacent in both buffers.
                Some(last) if ends_at(&last.mirror, &mirror) && ends_at(&last.owner, &owner) => {
                    last.mirror.1.end = mirror.1.end;
                    last.owner.1.end = owner.1.end;
                }
                _ => buckets.mirrors.push(MirrorPair { mirror, owner }),
            }
        }
        buckets.cut(blueprint, num_workers);
        buckets
    }

    /// Bucket of a block.
    pub fn of_block(&self, block: usize) -> usize {
        self.bucket_of[block]
    }

    /// Saved parameters in these buckets, each with its block.
    pub(crate) fn params_here<'a>(
        &'a self,
        blueprint: &'a Blueprint,
    ) -> impl Iterator<Item = (usize, &'a Param)> + 'a {
        blueprint.owned_params().filter(|(block, _)| self.list[self.of_block(*block)].len > 0)
    }

    /// Shapes of the hidden matrices in these buckets.
    pub(crate) fn hidden_matrices<'a>(
        &'a self,
        blueprint: &'a Blueprint,
    ) -> impl Iterator<Item = [usize; 2]> + 'a {
        let params = self.params_here(blueprint);
        params.filter_map(|(block, param)| blueprint.hidden_matrix(block, param))
    }

    /// Bucket and range of a parameter.
    pub fn place(&self, block: usize, param: &Param) -> (usize, Range<usize>) {
        let bucket = self.bucket_of[block];
        let start = self.list[bucket].block(block).start + param.range().start;
        (bucket, start..start + param.len())
    }

    /// Number of parameters, mirrors included.
    pub fn num_params(&self) -> usize {
        self.list.iter().map(|bucket| bucket.len).sum()
    }

    /// Memory of a copy of all parameters in a type, in `f32` elements.
    pub fn copies_len(&self, dtype: Dtype) -> usize {
        self.list.iter().map(|bucket| floats(dtype, bucket.len)).sum()
    }

    /// Length of the longest bucket.
    pub fn max_len(&self) -> usize {
        self.list.iter().map(|bucket| bucket.len).max().unwrap_or(0)
    }

    /// Length of the rank's longest shard of any bucket.
    pub fn max_part_len(&self, worker: usize) -> usize {
        self.list.iter().map(|bucket| bucket.part(worker).len()).max().unwrap_or(0)
    }

    /// Optimizer slots of the rank that owns `part(bucket)` of each bucket if nothing is frozen:
    /// every parameter but mirrors, or a piece of it, relative to that range.
    pub fn slots(
        &self,
        blueprint: &Blueprint,
        part: impl Fn(&Bucket) -> Range<usize>,
    ) -> Vec<Slot> {
        let mut names: Vec<&str> = blueprint.owned_params().map(|(_, p)| &*p.name).collect();
        names.sort_unstable();
        names.dedup();
        let slot = |(block, param): (usize, &Param)| {
            let (bucket, range) = self.place(block, param);
            let own = part(&self.list[bucket]);
            let (start, end) = (range.start.max(own.start), range.end.min(own.end));
            (start < end).then(|| Slot {
                block: bucket,
                name: param.name.clone(),
                tensor: names.binary_search(&&*param.name).expect("it is one of them"),
                piece: param.piece.index,
                range: start - own.start..end - own.start,
                grads: start - own.start..end - own.start,
                first: param.first() + start - range.start,
                decay: param.decay,
                shape: Blueprint::rows_and_cols(param),
                matrix: blueprint.hidden_matrix(block, param),
            })
        };
        blueprint.owned_params().filter_map(slot).collect()
    }

    /// Buckets that keep only `runs`, ranges of whole parameters by bucket: blocks, shards and
    /// mirrors move to where they lie once the rest is removed. If only one of a mirror pair is
    /// left, the other becomes empty.
    pub fn only(&self, runs: &[Vec<Range<usize>>]) -> Self {
        let moved = |bucket: usize, place: usize| -> usize {
            runs[bucket].iter().map(|run| place.clamp(run.start, run.end) - run.start).sum()
        };
        let thin = |(index, bucket): (usize, &Bucket)| {
            let all = |places: &[usize]| places.iter().map(|p| moved(index, *p)).collect();
            Bucket {
                blocks: bucket.blocks.clone(),
                len: moved(index, bucket.len),
                cuts: all(&bucket.cuts),
                starts: all(&bucket.starts),
            }
        };
        let thin_range = |(bucket, range): &(usize, Range<usize>)| {
            (*bucket, moved(*bucket, range.start)..moved(*bucket, range.end))
        };
        let pairs = self.mirrors.iter().map(|pair| MirrorPair {
            mirror: thin_range(&pair.mirror),
            owner: thin_range(&pair.owner),
        });
        Self {
            list: self.list.iter().enumerate().map(thin).collect(),
            mirrors: pairs.filter(|p| p.is_mirror_here() || p.is_owner_here()).collect(),
            bucket_of: self.bucket_of.clone(),
        }
    }

    /// Buckets with those of other pipeline stages emptied: `is_here` selects the blocks of this
    /// rank. Shards keep their cuts.
    pub fn here(&self, is_here: impl Fn(usize) -> bool) -> Self {
        let len = |bucket: &Bucket| if is_here(bucket.blocks.start) { bucket.len } else { 0 };
        let all = |bucket: &Bucket| std::iter::once(0..len(bucket)).collect();
        self.only(&self.list.iter().map(all).collect::<Vec<_>>())
    }

    /// Cuts only the range behind `start` of a bucket into shards; the range before it belongs to
    /// none.
    pub fn cut_behind(
        &mut self,
        blueprint: &Blueprint,
        bucket: usize,
        start: usize,
        num_workers: usize,
    ) {
        let bucket = &mut self.list[bucket];
        let ideal = |worker: usize| start + (bucket.len - start) * worker / num_workers;
        bucket.cuts = (0..=num_workers).map(|w| bucket.nearest_cut(blueprint, ideal(w))).collect();
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

/// Whether `next` begins where `one` ends.
fn ends_at(one: &(usize, Range<usize>), next: &(usize, Range<usize>)) -> bool {
    one.0 == next.0 && one.1.end == next.1.start
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

    /// The allowed cut nearest to `ideal`: a chunk boundary, start or end of a tensor.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MODEL;
    use lockstep_config::{Family, Model};
    use lockstep_model::describe;

    const MIN_LENS: [usize; 5] = [0, 10_000, 20_000, 40_000, usize::MAX];

    /// Checks every model, bucket size and number of ranks.
    fn for_all(check: impl Fn(&Blueprint, &Buckets, usize)) {
        let tiny = Model { layers: 1, width: 8, ffn: 8, vocab: 11, ..MODEL };
        for tied in [false, true] {
            let gpt2 = Model { family: Family::Gpt2, kv_heads: 4, ..MODEL };
            for model in [MODEL, gpt2, tiny.clone()] {
                let blueprint = describe(&Model { tied, ..model });
                for min_len in MIN_LENS {
                    for num_workers in 1..=9 {
                        let buckets = Buckets::new(&blueprint, min_len, num_workers);
                        check(&blueprint, &buckets, min_len);
                    }
                }
            }
        }
    }

    /// Allowed cuts of a bucket: multiples of a chunk in a tensor, and its ends.
    fn allowed(blueprint: &Blueprint, buckets: &Buckets, index: usize) -> Vec<usize> {
        let mut allowed = vec![0];
        for (block, param) in blueprint.params() {
            let (bucket, range) = buckets.place(block, param);
            if bucket == index {
                allowed.extend(range.clone().step_by(CHUNK_LEN));
                allowed.push(range.end);
            }
        }
        allowed
    }

    #[test]
    fn cuts_lie_at_the_nearest_chunk_or_end_of_a_tensor() {
        for_all(|blueprint, buckets, _| {
            for (index, bucket) in buckets.list.iter().enumerate() {
                let allowed = allowed(blueprint, buckets, index);
                assert!(bucket.cuts.iter().all(|cut| allowed.contains(cut)), "{bucket:?}");
                let is_mirror = buckets.mirrors.iter().any(|pair| pair.mirror.0 == index);
                let num_workers = bucket.cuts.len() - 1;
                for (worker, cut) in bucket.cuts.iter().enumerate() {
                    let ideal = bucket.len * worker / num_workers;
                    let nearest = allowed.iter().map(|place| place.abs_diff(ideal)).min().unwrap();
                    assert!(is_mirror || cut.abs_diff(ideal) == nearest, "{ideal} in {bucket:?}");
                }
            }
        });
    }

    #[test]
    fn parts_and_blocks_cover_every_bucket() {
        for_all(|blueprint, buckets, _| {
            let mut next_block = 0;
            for (index, bucket) in buckets.list.iter().enumerate() {
                assert!(bucket.cuts.is_sorted(), "{bucket:?}");
                assert_eq!((bucket.cuts[0], *bucket.cuts.last().unwrap()), (0, bucket.len));
                assert_eq!(bucket.part_lens().iter().sum::<usize>(), bucket.len);
                assert_eq!(bucket.blocks.start, next_block);
                next_block = bucket.blocks.end;
                let mut start = 0;
                for block in bucket.blocks.clone() {
                    let len = blueprint.blocks[block].num_params();
                    assert_eq!(bucket.block(block), start..start + len);
                    assert_eq!(buckets.of_block(block), index);
                    start += len;
                }
                assert_eq!(start, bucket.len);
            }
            assert_eq!(next_block, blueprint.blocks.len());
        });
    }

    #[test]
    fn small_blocks_are_merged_from_the_back_and_no_more_than_needed() {
        for_all(|blueprint, buckets, min_len| {
            let has_mirror = |bucket: &Bucket| {
                let params = blueprint.blocks[bucket.blocks.end - 1].params();
                params.iter().any(|param| param.mirror_of.is_some())
            };
            for (index, bucket) in buckets.list.iter().enumerate() {
                if has_mirror(bucket) {
                    assert_eq!(bucket.blocks.len(), 1, "a mirror is cut by itself: {bucket:?}");
                    continue;
                }
                // The first bucket may be short.
                assert!(index == 0 || bucket.len >= min_len, "{bucket:?} for {min_len}");
                let without_first = bucket.len - bucket.block(bucket.blocks.start).len();
                assert!(bucket.blocks.len() == 1 || without_first < min_len, "{bucket:?}");
            }
        });
    }

    #[test]
    fn mirrors_are_cut_where_their_owners_are() {
        for_all(|_, buckets, _| {
            for MirrorPair { mirror, owner } in &buckets.mirrors {
                let [mirror_bucket, owner_bucket] =
                    [mirror.0, owner.0].map(|bucket| &buckets.list[bucket]);
                for worker in 0..mirror_bucket.cuts.len() - 1 {
                    let piece = |bucket: &Bucket, all: &Range<usize>| {
                        let part = bucket.part(worker);
                        let cut = |at: usize| at.clamp(all.start, all.end) - all.start;
                        cut(part.start)..cut(part.end)
                    };
                    let copied = piece(mirror_bucket, &mirror.1);
                    assert_eq!(copied, piece(owner_bucket, &owner.1), "worker {worker}");
                }
            }
        });
    }

    #[test]
    fn slots_of_all_workers_are_every_parameter_once() {
        for_all(|blueprint, buckets, _| {
            let num_workers = buckets.list[0].cuts.len() - 1;
            let slots_of = |worker| {
                let slots = buckets.slots(blueprint, |bucket: &Bucket| bucket.part(worker));
                slots.into_iter().map(move |slot| (worker, slot))
            };
            let slots: Vec<_> = (0..num_workers).flat_map(slots_of).collect();
            for (block, param) in blueprint.owned_params() {
                let (bucket, range) = buckets.place(block, param);
                let mut next = 0;
                for (worker, slot) in slots.iter().filter(|(_, slot)| slot.name == param.name) {
                    let part = buckets.list[bucket].part(*worker);
                    assert_eq!((slot.block, slot.first), (bucket, next), "{}", param.name);
                    assert_eq!(part.start + slot.range.start, range.start + slot.first);
                    assert!(slot.first.is_multiple_of(CHUNK_LEN), "{}", param.name);
                    next += slot.range.len();
                }
                assert_eq!(next, param.len(), "{}", param.name);
            }
            let mirrored = slots.iter().any(|(_, slot)| {
                blueprint.params().any(|(_, p)| p.name == slot.name && p.mirror_of.is_some())
            });
            assert!(!mirrored, "a mirror is not stepped");
        });
    }
}
