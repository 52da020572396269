//! Prefetch windows of ZeRO-3: which parameters are gathered, simulated block by block.

use lockstep_parallel::Buckets;

/// Two bucket windows, as in [`lockstep_parallel::weights`]: while blocks compute in one, the next
/// bucket is gathered into the other. A step begins with empty windows, unless the model was
/// evaluated since the last one.
pub(super) struct PrefetchWindows<'a> {
    buckets: &'a Buckets,
    held: [Option<usize>; 2],
    /// All-gathers by bucket and window.
    pub(super) num_gathers: Vec<[u64; 2]>,
}

impl<'a> PrefetchWindows<'a> {
    pub(super) fn new(buckets: &'a Buckets) -> Self {
        Self { buckets, held: [None; 2], num_gathers: vec![[0; 2]; buckets.list.len()] }
    }

    /// Resets the counts, not the windows.
    pub(super) fn reset_counts(&mut self) {
        self.num_gathers.fill([0; 2]);
    }

    /// Gathers a block's bucket, then that of the next block.
    pub(super) fn fetch(&mut self, block: usize, next: Option<usize>) {
        let bucket = self.buckets.of_block(block);
        let at = self.gather(bucket, 0);
        if let Some(next) = next.map(|next| self.buckets.of_block(next))
            && next != bucket
        {
            self.gather(next, 1 - at);
        }
    }

    /// Gathers a bucket into a window unless one holds it already; returns its window.
    fn gather(&mut self, bucket: usize, window: usize) -> usize {
        if let Some(at) = self.held.iter().position(|held| *held == Some(bucket)) {
            return at;
        }
        self.held[window] = Some(bucket);
        self.num_gathers[bucket][window] += 1;
        window
    }
}
