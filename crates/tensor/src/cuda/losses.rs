//! Cross-entropy on a CUDA device. Unlike on the CPU, exponentials are computed twice instead of
//! being stored in the type of the logits, which may have few digits. A row of logits that fits
//! into shared memory is read once.

use super::Cuda;
use super::launch::launch;
use super::programs::{Grid, Program, Source};
use crate::device::error::{DeviceError, Result};
use crate::device::layers::on_cpu_only;
use crate::device::losses::{Losses, Preferences, Targets, Teacher};
use crate::device::view::{Dtype, View, ViewMut};
use crate::gemm::Write;

/// Most threads of a block that keeps a row in shared memory: two such blocks fit.
const SHARED_THREADS: usize = 512;

impl Cuda {
    /// Most dynamic shared memory of a block beside its static one.
    const fn shared_row_bytes(&self) -> usize {
        match self.capability {
            (8, 0 | 7) => 160 << 10,
            (9 | 10, _) => 224 << 10,
            _ => 96 << 10,
        }
    }

    /// Number of columns of logits.
    fn vocab(logits: usize, rows: usize) -> usize {
        assert!(rows > 0 && logits.is_multiple_of(rows) && logits > 0, "{rows} rows of logits");
        logits / rows
    }

    /// The sum of losses, by one block.
    fn sum_losses(
        &self,
        losses: u64,
        rows: usize,
        total: &ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        assert_eq!(total.len(), 1, "one sum");
        let add = i32::from(write == Write::Add);
        let (total, rows) = (self.write(total, Dtype::F64)?, rows as u64);
        let grid = Grid { blocks: (1, 1, 1), threads: 1024, shared_bytes: 0 };
        let program = Program::new(Source::CrossEntropy, Dtype::F32);
        launch!(self, program, "sum_losses", grid, losses, rows, total, add)
    }

    /// Losses of rows of logits, and their gradients if there are `num_targets`.
    fn loss(
        &self,
        logits: &View<'_>,
        targets: &View<'_>,
        (num_targets, factor): (u64, f32),
        losses: &ViewMut<'_>,
        (total, write): (&ViewMut<'_>, Write),
    ) -> Result<()> {
        let rows = targets.len();
        let vocab = Self::vocab(logits.len(), rows);
        assert_eq!(losses.len(), rows, "a loss for each target");
        let program = Program::new(Source::CrossEntropy, logits.dtype());
        let (targets, losses) = (self.read(targets, Dtype::U32)?, self.write(losses, Dtype::F32)?);
        let (row_bytes, mut grid) = (vocab * logits.dtype().size(), Self::by_rows(rows, vocab));
        let bytes = (1 + usize::from(num_targets > 0)) * logits.num_bytes();
        let (logits, whole_groups) = (self.read(logits, logits.dtype())?, vocab.is_multiple_of(8));
        let mut kernel = "cross_entropy";
        if whole_groups && logits.is_multiple_of(16) && row_bytes <= self.shared_row_bytes() {
            kernel = "cross_entropy_in_shared";
            grid.threads = grid.threads.min(SHARED_THREADS);
            grid.shared_bytes = row_bytes;
        }
        let vocab = vocab as u64;
        self.recorder.moves(bytes);
        launch!(self, program, kernel, grid, logits, vocab, targets, num_targets, factor, losses,)?;
        self.sum_losses(losses, rows, total, write)
    }
}

/// Preferences are learnt on CPUs only.
fn refuse_preferences() -> Result<()> {
    let reason = "finetune.method = \"dpo\" runs on the CPU; set run.device = \"cpu\"".to_owned();
    Err(DeviceError::Unsupported { operation: "the loss of preferences", reason })
}

impl Losses for Cuda {
    fn cross_entropy(
        &self,
        logits: View<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        self.loss(&logits, &targets, (0, 1.0), &losses, (&total, write))
    }

    fn cross_entropy_backward(
        &self,
        logits: ViewMut<'_>,
        targets: Targets<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        assert!(targets.num_targets > 0, "a batch has targets");
        let factors = (targets.num_targets, targets.loss_scale);
        self.loss(&logits.as_view(), &targets.ids, factors, &losses, (&total, write))
    }

    fn raise_maxima(&self, logits: View<'_>, max: ViewMut<'_>) -> Result<()> {
        let (rows, vocab) = (max.len(), Self::vocab(logits.len(), max.len()));
        let program = Program::new(Source::CrossEntropy, logits.dtype());
        let (logits, max) = (self.read(&logits, logits.dtype())?, self.write(&max, Dtype::F32)?);
        let (grid, vocab) = (Self::by_rows(rows, vocab), vocab as u64);
        launch!(self, program, "raise_maxima", grid, logits, vocab, max)
    }

    fn exponential_sums(
        &self,
        logits: ViewMut<'_>,
        targets: View<'_>,
        max: View<'_>,
        sums: ViewMut<'_>,
        _trains: bool,
    ) -> Result<()> {
        let (rows, vocab) = (targets.len(), Self::vocab(logits.len(), targets.len()));
        assert_eq!([max.len(), sums.len()], [rows; 2], "a maximum and a sum for each row");
        let program = Program::new(Source::CrossEntropy, logits.dtype());
        let logits = self.write(&logits, logits.dtype())?;
        let (targets, max) = (self.read(&targets, Dtype::U32)?, self.read(&max, Dtype::F32)?);
        let (sums, grid) = (self.write(&sums, Dtype::F32)?, Self::by_rows(rows, vocab));
        let vocab = vocab as u64;
        launch!(self, program, "exponential_sums", grid, logits, vocab, targets, max, sums)
    }

    fn target_logits(
        &self,
        logits: View<'_>,
        first_column: usize,
        targets: View<'_>,
        target_logits: ViewMut<'_>,
    ) -> Result<()> {
        let (rows, vocab) = (targets.len(), Self::vocab(logits.len(), targets.len()));
        assert_eq!(target_logits.len(), rows, "a logit for each target");
        let program = Program::new(Source::CrossEntropy, logits.dtype());
        let (logits, targets) =
            (self.read(&logits, logits.dtype())?, self.read(&targets, Dtype::U32)?);
        let (out, grid) = (self.write(&target_logits, Dtype::F32)?, Self::by_items(rows));
        let [vocab, first, rows] = [vocab, first_column, rows].map(|count| count as u64);
        launch!(self, program, "target_logits", grid, logits, vocab, first, targets, rows, out)
    }

    fn shard_gradients(
        &self,
        logits: ViewMut<'_>,
        first_column: usize,
        targets: Targets<'_>,
        max: View<'_>,
        sums: View<'_>,
    ) -> Result<()> {
        let rows = targets.ids.len();
        let vocab = Self::vocab(logits.len(), rows);
        assert_eq!([max.len(), sums.len()], [rows; 2], "a maximum and a sum for each row");
        let program = Program::new(Source::CrossEntropy, logits.dtype());
        let logits = self.write(&logits, logits.dtype())?;
        let (num, factor) = (targets.num_targets, targets.loss_scale);
        let (ids, max) = (self.read(&targets.ids, Dtype::U32)?, self.read(&max, Dtype::F32)?);
        let (sums, grid) = (self.read(&sums, Dtype::F32)?, Self::by_rows(rows, vocab));
        let [vocab, first] = [vocab, first_column].map(|count| count as u64);
        launch!(
            self,
            program,
            "shard_gradients",
            grid,
            logits,
            vocab,
            first,
            ids,
            num,
            factor,
            max,
            sums,
        )
    }

    fn shard_losses(
        &self,
        targets: View<'_>,
        max: View<'_>,
        sums: View<'_>,
        target_logits: View<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
    ) -> Result<()> {
        let rows = targets.len();
        let lens = [max.len(), sums.len(), target_logits.len(), losses.len()];
        assert_eq!(lens, [rows; 4], "values for each row");
        let (targets, max) = (self.read(&targets, Dtype::U32)?, self.read(&max, Dtype::F32)?);
        let sums = self.read(&sums, Dtype::F32)?;
        let target_logits = self.read(&target_logits, Dtype::F32)?;
        let (losses, grid) = (self.write(&losses, Dtype::F32)?, Self::by_items(rows));
        let (program, num) = (Program::new(Source::CrossEntropy, Dtype::F32), rows as u64);
        launch!(
            self,
            program,
            "shard_losses",
            grid,
            targets,
            max,
            sums,
            target_logits,
            num,
            losses,
        )?;
        self.sum_losses(losses, rows, &total, Write::Set)
    }

    fn preference_loss(
        &self,
        _losses: View<'_>,
        _targets: View<'_>,
        _preferences: Preferences<'_>,
        _factors: ViewMut<'_>,
        _total: ViewMut<'_>,
        _pairs: ViewMut<'_>,
    ) -> Result<()> {
        refuse_preferences()
    }

    fn distillation_backward(
        &self,
        _logits: ViewMut<'_>,
        _teacher: Teacher<'_>,
        _targets: Targets<'_>,
        _losses: ViewMut<'_>,
        _total: ViewMut<'_>,
    ) -> Result<()> {
        Err(on_cpu_only("distillation"))
    }

    fn scale_sequences(&self, _gradients: ViewMut<'_>, _factors: View<'_>) -> Result<()> {
        refuse_preferences()
    }

    fn greedy_token(
        &self,
        logits: View<'_>,
        token: ViewMut<'_>,
        num_invalid: ViewMut<'_>,
    ) -> Result<()> {
        assert!(!logits.is_empty(), "a vocabulary");
        assert_eq!([token.len(), num_invalid.len()], [1; 2], "one token and one count");
        let (program, grid) =
            (Program::new(Source::CrossEntropy, logits.dtype()), Self::by_rows(1, logits.len()));
        let vocab = logits.len() as u64;
        let logits = self.read(&logits, logits.dtype())?;
        let token = self.write(&token, Dtype::U32)?;
        let num_invalid = self.write(&num_invalid, Dtype::U32)?;
        launch!(self, program, "greedy_token", grid, logits, vocab, token, num_invalid)
    }
}
