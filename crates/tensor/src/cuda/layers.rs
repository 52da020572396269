//! Layers on a CUDA device.

mod norm;

use super::Cuda;
use super::commands::KernelArg;
use super::launch::{launch, type_code};
use super::programs::{Grid, Program, Source};
use crate::device::error::Result;
use crate::device::layers::{Layers, on_cpu_only};
use crate::device::operands::{Activation, Norm};
use crate::device::view::{Dtype, View, ViewMut};
use crate::dropout::DropoutMask;
use crate::rope::Rotation;

/// Rows and columns of a chunk of a column sum.
const CHUNK_ROWS: usize = 128;
const CHUNK_COLS: usize = 256;
/// Columns of a block that adds chunks, by as many lines.
const SUM_COLS: usize = 32;
/// Tokens that a row of the embedding table sorts.
const FEW_TOKENS: usize = 64;

/// `Key` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelKey {
    seed: [u32; 2],
    stream: u64,
}

// SAFETY: no padding.
unsafe impl KernelArg for KernelKey {}

/// `Rotation` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelRotation {
    num_positions: u64,
    half: u64,
    num_rows: u64,
    row_stride: u64,
    num_heads: u64,
    tokens_per_sequence: u64,
    first_position: u64,
    sign: f32,
    padding: u32,
}

// SAFETY: no padding but that which is named.
unsafe impl KernelArg for KernelRotation {}

/// Terms of a column sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Terms {
    Plain = 0,
    Rms = 1,
    Layer = 2,
}

impl Cuda {
    /// Adds column sums of terms to the targets that are not empty: chunks of rows first, then the
    /// chunks.
    fn add_columns(
        &self,
        terms: Terms,
        [x, dy]: [&View<'_>; 2],
        [mean, rstd]: [u64; 2],
        width: usize,
        targets: [&ViewMut<'_>; 2],
    ) -> Result<()> {
        assert!(width > 0 && dy.len().is_multiple_of(width), "whole rows of {width} columns");
        for target in targets.iter().filter(|target| !target.is_empty()) {
            assert_eq!(target.len(), width, "a sum for each column");
        }
        let rows = dy.len() / width;
        let chunks = rows.div_ceil(CHUNK_ROWS);
        let (dy_type, mode) = (dy.dtype(), terms as i32);
        let program = Program::new(Source::Columns, dy_type);
        let (x, dy) = (self.read(x, dy.dtype())?, self.read(dy, dy.dtype())?);
        let (num_rows, num_chunks, columns) = (rows as u64, chunks as u64, width as u64);
        let (one, two) = (self.optional(targets[0])?, self.optional(targets[1])?);
        self.with_scratch(0, 2 * chunks * width * 4, |first| {
            let second = if two == 0 { 0 } else { first + 4 * num_chunks * columns };
            let blocks = (width.div_ceil(CHUNK_COLS), chunks, 1);
            let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
            launch!(
                self,
                program,
                "column_partials",
                grid,
                mode,
                x,
                dy,
                mean,
                rstd,
                num_rows,
                columns,
                first,
                second,
            )?;
            self.add_partials(dy_type, first, [chunks, width], [one, two])
        })
    }

    /// Adds partial sums of columns, and those behind them, to one or two targets.
    fn add_partials(
        &self,
        dtype: Dtype,
        partials: u64,
        [chunks, width]: [usize; 2],
        [one, two]: [u64; 2],
    ) -> Result<()> {
        let blocks = (width.div_ceil(SUM_COLS), if two == 0 { 1 } else { 2 }, 1);
        let grid = Grid { blocks, threads: SUM_COLS * 32, shared_bytes: 0 };
        let (program, chunks, columns) =
            (Program::new(Source::Columns, dtype), chunks as u64, width as u64);
        launch!(self, program, "add_partials", grid, partials, chunks, columns, one, two)
    }

    /// Address of a sum, or null.
    fn optional(&self, target: &ViewMut<'_>) -> Result<u64> {
        if target.is_empty() { Ok(0) } else { self.write(target, Dtype::F32) }
    }
}

impl Layers for Cuda {
    fn norm_forward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()> {
        self.run_norm(&norm, &x, [0; 2], &y, &stats)
    }

    fn add_norm_forward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        residual: View<'_>,
        sum: ViewMut<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!([residual.len(), sum.len()], [x.len(); 2], "both addends have one shape");
        let both = [self.read(&residual, x.dtype())?, self.write(&sum, x.dtype())?];
        self.run_norm(&norm, &x, both, &y, &stats)
    }

    fn normalize(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let o = self.norm_operands(&norm, x.len(), stats.len())?;
        assert_eq!(y.len(), x.len(), "output and input have one shape");
        let program = Program::new(Source::Norm, x.dtype());
        let grid = self.over_rows(o.rows as usize, norm.width());
        let [mean, rstd] = o.stats(self.read(&stats, Dtype::F32)?);
        let (x, y) = (self.read(&x, x.dtype())?, self.write(&y, x.dtype())?);
        launch!(self, program, "normalize", grid, o, x, mean, rstd, y)
    }

    fn norm_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let o = self.norm_operands(&norm, x.len(), stats.len())?;
        assert_eq!([dy.len(), dx.len()], [x.len(); 2], "gradients and input have one shape");
        let program = Program::new(Source::Norm, x.dtype());
        let [mean, rstd] = o.stats(self.read(&stats, Dtype::F32)?);
        let (dy, dx) = (self.read(&dy, x.dtype())?, self.write(&dx, x.dtype())?);
        let x = self.read(&x, x.dtype())?;
        let kernels = ["norm_backward_warp", "norm_backward_block", "norm_backward_any"];
        let (kernel, grid) = o.kernel(kernels, &[x, dy, dx])?;
        let none = norm::Partials::default();
        launch!(self, program, kernel, grid, o, x, mean, rstd, dy, dx, none)
    }

    fn norm_and_weight_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
    ) -> Result<()> {
        self.norm_gradients(norm, [x, stats, dy], [dx, dweight, dbias])
    }

    fn norm_weight_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
    ) -> Result<()> {
        let all = norm.stats_len(x.len() / norm.width());
        let o = self.norm_operands(&norm, x.len(), all)?;
        assert!(stats.len() >= all, "statistics of {} rows", o.rows);
        assert_eq!(dy.len(), x.len(), "output gradient and input have one shape");
        let (mean, is_layer) = (self.read(&stats, Dtype::F32)?, norm.bias.is_some());
        assert!(is_layer || dbias.is_empty(), "RMSNorm has no bias");
        let rstd = mean + 4 * (stats.len() as u64 - o.rows);
        let terms = if is_layer { Terms::Layer } else { Terms::Rms };
        let width = o.width as usize;
        self.add_columns(terms, [&x, &dy], [mean, rstd], width, [&dweight, &dbias])
    }

    fn rotate(
        &self,
        angles: View<'_>,
        head_dim: usize,
        rows: ViewMut<'_>,
        rotation: &Rotation,
    ) -> Result<()> {
        rotation.check(head_dim, angles.len() / head_dim, rows.len());
        if rotation.head_stride != head_dim {
            return Err(on_cpu_only("the rotation of a part of each head"));
        }
        let (num_rows, dtype) = (rows.len() / rotation.row_stride, rows.dtype());
        let count = |count: usize| count as u64;
        let kernel_rotation = KernelRotation {
            num_positions: count(angles.len() / head_dim),
            half: count(head_dim / 2),
            num_rows: count(num_rows),
            row_stride: count(rotation.row_stride),
            num_heads: count(rotation.num_heads),
            tokens_per_sequence: count(rotation.tokens_per_sequence),
            first_position: count(rotation.first_position),
            sign: if rotation.inverse { -1.0 } else { 1.0 },
            padding: 0,
        };
        let program = Program::new(Source::Pointwise, dtype);
        let (angles, rows) = (self.read(&angles, Dtype::F32)?, self.write(&rows, dtype)?);
        let grid = self.over_rows(num_rows * rotation.num_heads.div_ceil(4), head_dim / 2);
        self.recorder.moves(2 * num_rows * rotation.num_heads * head_dim * dtype.size());
        launch!(self, program, "rotate", grid, rows, angles, kernel_rotation)
    }

    fn swiglu_forward(&self, gate_up: View<'_>, ffn: usize, act: ViewMut<'_>) -> Result<()> {
        assert!(ffn > 0 && act.len().is_multiple_of(ffn), "whole rows of {ffn}");
        assert_eq!(gate_up.len(), 2 * act.len(), "a gate and an up for each activation");
        let (dtype, rows) = (act.dtype(), act.len() / ffn);
        let (program, grid) = (Program::new(Source::Pointwise, dtype), self.over_rows(rows, ffn));
        let (gate_up, act) = (self.read(&gate_up, dtype)?, self.write(&act, dtype)?);
        self.recorder.moves(3 * rows * ffn * dtype.size());
        let [rows, ffn] = [rows, ffn].map(|count| count as u64);
        launch!(self, program, "swiglu_forward", grid, gate_up, rows, ffn, act)
    }

    fn swiglu_backward(
        &self,
        gate_up: View<'_>,
        ffn: usize,
        dact: View<'_>,
        dgate_up: ViewMut<'_>,
        act: ViewMut<'_>,
    ) -> Result<()> {
        assert!(ffn > 0 && dact.len().is_multiple_of(ffn), "whole rows of {ffn}");
        assert!([0, dact.len()].contains(&act.len()), "activations and gradients have one shape");
        assert_eq!([gate_up.len(), dgate_up.len()], [2 * dact.len(); 2], "gates and ups");
        let (dtype, rows) = (dact.dtype(), dact.len() / ffn);
        let (program, grid) = (Program::new(Source::Pointwise, dtype), self.over_rows(rows, ffn));
        let (gate_up, dact) = (self.read(&gate_up, dtype)?, self.read(&dact, dtype)?);
        let act = if act.is_empty() { 0 } else { self.write(&act, dtype)? };
        let dgate_up = self.write(&dgate_up, dtype)?;
        self.recorder.moves((5 + usize::from(act != 0)) * rows * ffn * dtype.size());
        let [rows, ffn] = [rows, ffn].map(|count| count as u64);
        launch!(self, program, "swiglu_backward", grid, gate_up, rows, ffn, dact, dgate_up, act)
    }

    fn activate(&self, function: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        assert_eq!(x.len(), y.len(), "input and output have one shape");
        let (dtype, n, grid) = (x.dtype(), x.len() as u64, self.over(x.len()));
        let (x, y) = (self.read(&x, dtype)?, self.write(&y, dtype)?);
        let (program, function) = (Program::new(Source::Pointwise, dtype), code_of(function)?);
        launch!(self, program, "activate", grid, function, x, y, n)
    }

    fn activate_backward(
        &self,
        function: Activation,
        x: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!([dy.len(), dx.len()], [x.len(); 2], "gradients and input have one shape");
        let (dtype, n, grid) = (x.dtype(), x.len() as u64, self.over(x.len()));
        let (x, dy, dx) = (self.read(&x, dtype)?, self.read(&dy, dtype)?, self.write(&dx, dtype)?);
        let (program, function) = (Program::new(Source::Pointwise, dtype), code_of(function)?);
        launch!(self, program, "activate_backward", grid, function, x, dy, dx, n)
    }

    fn activate_and_backward(
        &self,
        function: Activation,
        x: View<'_>,
        dy: View<'_>,
        y: ViewMut<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!([dy.len(), y.len(), dx.len()], [x.len(); 3], "all operands have one shape");
        let (dtype, n, grid) = (x.dtype(), x.len() as u64, self.over(x.len()));
        let (x, dy) = (self.read(&x, dtype)?, self.read(&dy, dtype)?);
        let (y, dx) = (self.write(&y, dtype)?, self.write(&dx, dtype)?);
        let (program, function) = (Program::new(Source::Pointwise, dtype), code_of(function)?);
        launch!(self, program, "activate_and_backward", grid, function, x, dy, y, dx, n)
    }

    fn bias_add(&self, x: ViewMut<'_>, bias: View<'_>) -> Result<()> {
        let width = bias.len();
        assert!(width > 0 && x.len().is_multiple_of(width), "whole rows of {width} columns");
        let (program, grid) =
            (Program::new(Source::Pointwise, x.dtype()), Self::by_rows(x.len() / width, width));
        let (x, code) = (self.write(&x, x.dtype())?, type_code(bias.dtype())?);
        let (bias, width) = (self.read(&bias, bias.dtype())?, width as u64);
        launch!(self, program, "bias_add", grid, x, bias, code, width, width)
    }

    fn column_sums(&self, x: View<'_>, sums: ViewMut<'_>) -> Result<()> {
        let none = ViewMut::of::<f32>(&mut []);
        self.add_columns(Terms::Plain, [&x, &x], [0; 2], sums.len(), [&sums, &none])
    }

    fn embedding_forward(
        &self,
        ids: View<'_>,
        table: View<'_>,
        first_row: usize,
        width: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!(out.len(), ids.len() * width, "one row of {width} for each token");
        let (grid, code) = (self.over_rows(ids.len(), width), type_code(table.dtype())?);
        let [tokens, first, rows, width] =
            [ids.len(), first_row, table.len() / width, width].map(|count| count as u64);
        let (ids, table) = (self.read(&ids, Dtype::U32)?, self.read(&table, table.dtype())?);
        let program = Program::new(Source::Embedding, out.dtype());
        let out = self.write(&out, out.dtype())?;
        launch!(
            self,
            program,
            "embedding_forward",
            grid,
            ids,
            tokens,
            table,
            code,
            first,
            rows,
            width,
            out,
        )
    }

    fn embedding_backward(
        &self,
        ids: View<'_>,
        dout: View<'_>,
        first_row: usize,
        width: usize,
        dtable: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!(dout.len(), ids.len() * width, "one row of {width} for each token");
        let (num_tokens, table_rows) = (ids.len(), dtable.len() / width);
        let program = Program::new(Source::Embedding, dout.dtype());
        let [tokens, first, rows, columns] =
            [num_tokens, first_row, table_rows, width].map(|count| count as u64);
        let (ids, dout) = (self.read(&ids, Dtype::U32)?, self.read(&dout, dout.dtype())?);
        let dtable = self.write(&dtable, Dtype::F32)?;
        // First tokens of rows, rows of many tokens with their number, next tokens.
        let len = table_rows + 1 + num_tokens / FEW_TOKENS + num_tokens;
        self.with_scratch(0, len * size_of::<u32>(), |heads| {
            let many = heads + 4 * rows;
            let next = many + 4 * (1 + num_tokens / FEW_TOKENS) as u64;
            // SAFETY: the scratch memory has these bytes. No row has a token; a number of -1.
            unsafe { self.set_bytes(Dtype::U32, heads, 0xff, 4 * (table_rows + 1))? };
            let grid = Self::by_items(num_tokens);
            launch!(self, program, "link_tokens", grid, ids, tokens, first, rows, heads, next)?;
            let grid = Self::by_rows(table_rows, width);
            launch!(
                self,
                program,
                "embedding_backward",
                grid,
                dout,
                columns,
                heads,
                next,
                many,
                dtable,
            )?;
            let blocks = (num_tokens / FEW_TOKENS).min(2 * self.num_multiprocessors);
            let threads = width.div_ceil(2).next_multiple_of(32).min(1024);
            let grid = Grid { blocks: (blocks, 1, 1), threads, shared_bytes: 0 };
            launch!(
                self,
                program,
                "embedding_backward_many",
                grid,
                ids,
                tokens,
                dout,
                first,
                columns,
                many,
                dtable,
            )
        })
    }

    fn add_positions(
        &self,
        table: View<'_>,
        (tokens_per_sequence, documents): (usize, Option<View<'_>>),
        first_position: usize,
        width: usize,
        x: ViewMut<'_>,
    ) -> Result<()> {
        refuse_documents(documents)?;
        check_positions(table.len(), x.len(), tokens_per_sequence, first_position, width);
        let (rows, code) = (x.len() / width, type_code(table.dtype())?);
        let (program, grid) =
            (Program::new(Source::Embedding, x.dtype()), self.over_rows(rows, width));
        let [rows, tokens, first, width] =
            [rows, tokens_per_sequence, first_position, width].map(|count| count as u64);
        let (table, x) = (self.read(&table, table.dtype())?, self.write(&x, x.dtype())?);
        launch!(self, program, "add_positions", grid, table, code, tokens, first, rows, width, x)
    }

    fn positions_backward(
        &self,
        dx: View<'_>,
        (tokens_per_sequence, documents): (usize, Option<View<'_>>),
        width: usize,
        dtable: ViewMut<'_>,
    ) -> Result<()> {
        refuse_documents(documents)?;
        check_positions(dtable.len(), dx.len(), tokens_per_sequence, 0, width);
        let sequence_len = tokens_per_sequence * width;
        let program = Program::new(Source::Embedding, dx.dtype());
        let (sequences, grid) = ((dx.len() / sequence_len) as u64, self.over(sequence_len));
        let (dx, dtable) = (self.read(&dx, dx.dtype())?, self.write(&dtable, Dtype::F32)?);
        let len = sequence_len as u64;
        launch!(self, program, "positions_backward", grid, dx, sequences, len, dtable)
    }

    fn dropout(&self, mask: &DropoutMask, first_element: u64, x: ViewMut<'_>) -> Result<()> {
        let (threshold, scale) = (mask.threshold(), mask.scale());
        if threshold == 0 {
            return Ok(());
        }
        let (seed, stream) = mask.key.parts();
        let (key, n, grid) = (KernelKey { seed, stream }, x.len() as u64, self.over(x.len()));
        let (program, x) = (Program::new(Source::Pointwise, x.dtype()), self.write(&x, x.dtype())?);
        launch!(self, program, "dropout", grid, x, n, key, first_element, threshold, scale)
    }
}

fn code_of(function: Activation) -> Result<i32> {
    match function {
        Activation::Gelu => Ok(0),
        Activation::Relu => Ok(1),
        Activation::GeluErf => Err(on_cpu_only("GELU by the error function")),
    }
}

fn check_positions(table: usize, x: usize, tokens: usize, first: usize, width: usize) {
    assert!(
        tokens > 0 && width > 0 && x.is_multiple_of(tokens * width),
        "whole sequences of {tokens} tokens"
    );
    let (needed, rows) = (first + tokens, table / width);
    assert!(needed <= rows, "{needed} positions, but the table has {rows} rows");
}

fn refuse_documents(documents: Option<View<'_>>) -> Result<()> {
    documents.map_or(Ok(()), |_| Err(on_cpu_only("positions that restart with each document")))
}
