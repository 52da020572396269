//! Which parameters ZeRO-3 gathers: two windows, played block by block.

use lockstep_parallel::Buckets;

/// Room for two buckets at a time, as [`lockstep_parallel::weights`] has it: while blocks compute
/// in one, the next bucket arrives in the other. A step begins with nothing there,
/// unless the model was evaluated since the last one.
pub(super) struct Windows<'a> {
    buckets: &'a Buckets,
    held: [Option<usize>; 2],
    /// By bucket and window.
    pub(super) num_gathers: Vec<[u64; 2]>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(buckets: &'a Buckets) -> Self {
        Self { buckets, held: [None; 2], num_gathers: vec![[0; 2]; buckets.list.len()] }
    }

    /// Forgets what was counted, not what is there.
    pub(super) fn count_anew(&mut self) {
        self.num_gathers.fill([0; 2]);
    }

    /// Brings a block's bucket, and then that of the block that comes next.
    pub(super) fn fetch(&mut self, block: usize, next: Option<usize>) {
        let bucket = self.buckets.of_block(block);
        let at = self.bring(bucket, 0);
        if let Some(next) = next.map(|next| self.buckets.of_block(next))
            && next != bucket
        {
            self.bring(next, 1 - at);
        }
    }

    /// Brings a bucket into a window, unless it is in one already; says in which it is.
    fn bring(&mut self, bucket: usize, window: usize) -> usize {
        if let Some(at) = self.held.iter().position(|held| *held == Some(bucket)) {
            return at;
        }
        self.held[window] = Some(bucket);
        self.num_gathers[bucket][window] += 1;
        window
    }
}
