//! Operations that repeat have the bits of operations that are queued one by one, whatever changes
//! between two calls.

use super::{Case, bits, cases, cpu};
use crate::common::numbers;
use lockstep_tensor::attention::{Options, Shape};
use lockstep_tensor::device::{
    Buffer, DeviceError, Dtype, Epilogue, HeadRows, Matrix, MatrixMut, Memory, Result, View,
    ViewMut,
};
use lockstep_tensor::gemm::{Precision, Write};

const ROWS: usize = 128;
const COLS: usize = 192;
const NUM_ROUNDS: usize = 20;
/// Two sequences, two heads of 32.
const ATTENTION: Shape =
    Shape { sequences: 2, tokens: ROWS / 2, heads: 2, kv_heads: 2, head_dim: COLS / 6 };

/// Buffers of a section; the same in all rounds.
struct Buffers {
    x: Buffer,
    weight: Buffer,
    ids: Buffer,
    targets: [Buffer; 2],
    attended: Buffer,
    lse: Buffer,
    table: Buffer,
    wide: Buffer,
    wide_out: Buffer,
    scratch: Buffer,
}

impl Buffers {
    fn new(case: Case) -> Self {
        let target = || case.upload(&vec![0.0; ROWS * COLS]);
        let scratch = case.device.attention_scratch_len(case.precision(), ATTENTION);
        Self {
            x: target(),
            weight: case.upload_f32(&numbers(2, COLS * COLS)),
            ids: case.upload_ids(&[0; ROWS]),
            targets: [target(), target()],
            attended: case.upload(&vec![0.0; ROWS * COLS / 3]),
            lse: case.upload_f32(&[0.0; 2 * ROWS]),
            table: case.upload_f32(&[0.0; 8 * COLS]),
            wide: case.upload_f32(&vec![0.5; 4 * COLS * COLS]),
            wide_out: case.upload(&vec![0.0; 4 * ROWS * COLS]),
            scratch: case.upload_f32(&vec![0.0; scratch]),
        }
    }

    /// Operations of every type of command; what they do depends on the round.
    fn work(&mut self, case: Case, round: usize, read: &mut [u32]) -> Result<()> {
        let Self { x, weight, ids, targets, attended, lse, table, wide, wide_out, scratch } = self;
        let (device, precision) = (case.device, case.precision());
        let target = &mut targets[round % 2];
        let matrix = |x| Matrix::new(x, ROWS, COLS);
        let weights = Matrix::new(weight.view(), COLS, COLS);
        let out = MatrixMut::new(target.view_mut(), ROWS, COLS);
        device.product(precision, matrix(x.view()), weights, out, Write::Set, Epilogue::None)?;
        if round == 7 {
            // An upload inside the section.
            device.copy(View::of(&[3_u32, 1, 2, 5][..]), ids.view_mut().range(0..4))?;
        }
        let factor = if round < 9 { 0.5 } else { 0.25 };
        device.scale(target.view_mut(), factor, Precision::F32, ViewMut::of::<u64>(&mut []))?;
        if round == 8 {
            // A download inside the section.
            device.copy(ids.view().range(0..4), ViewMut::of(read))?;
        }
        let head = |part: usize| HeadRows {
            data: target.view().range(part * COLS / 3..ROWS * COLS),
            stride: COLS,
        };
        let qkv = [head(0), head(1), head(2)];
        let (out, lse) = (attended.view_mut(), lse.view_mut());
        let scratch = scratch.view_mut();
        device.attention_forward(
            precision,
            ATTENTION,
            qkv,
            0,
            &Options::CAUSAL,
            out,
            lse,
            scratch,
        )?;
        let parts = (ROWS, COLS / 3);
        device.copy_rows(parts, (attended.view(), COLS / 3), (target.view_mut(), COLS))?;
        device.fill(table.view_mut(), 0.0)?;
        device.embedding_backward(ids.view(), target.view(), 0, COLS, table.view_mut())?;
        if round == 12 {
            // More temporary memory than before, which moves.
            let wide = Matrix::new(wide.view(), COLS, 4 * COLS);
            let out = MatrixMut::new(wide_out.view_mut(), ROWS, 4 * COLS);
            device.product(precision, matrix(x.view()), wide, out, Write::Set, Epilogue::None)?;
        }
        device.copy(target.view(), x.view_mut())
    }

    /// Results of all rounds, each with new numbers.
    fn run(mut self, case: Case) -> Vec<Vec<u32>> {
        let mut results = Vec::new();
        for round in 0..NUM_ROUNDS {
            let x = case.upload(&numbers(round as u32, ROWS * COLS));
            case.device.copy(x.view(), self.x.view_mut()).unwrap();
            let tokens: Vec<u32> = (0..ROWS).map(|i| ((i * (round + 3)) % 8) as u32).collect();
            case.device.copy(View::of(&tokens), self.ids.view_mut()).unwrap();
            let (mut done, mut read) = (Ok(()), [0; 4]);
            let mut work = || done = self.work(case, round, &mut read);
            case.device.replay(5, &mut work).unwrap();
            done.unwrap();
            let [first, second] = &self.targets;
            for buffer in [&self.x, first, second, &self.attended, &self.table] {
                results.push(bits(&case.download(buffer)));
            }
            results.push(read.to_vec());
        }
        results
    }
}

#[test]
fn repeated_operations_have_the_bits_of_single_ones() {
    for case in cases() {
        case.device.set_replay(false);
        let expected = Buffers::new(case).run(case);
        case.device.set_replay(true);
        let before = case.device.num_replays();
        let found = Buffers::new(case).run(case);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{}: result {} of round {}", case.label(), i % 6, i / 6);
        }
        assert_eq!(case.device.take_warning(), None, "{}", case.label());
        let num_replays = case.device.num_replays() - before;
        assert!(case.is_cpu || num_replays > 8, "{}: {num_replays} replays", case.label());
    }
}

#[test]
fn memory_released_between_two_calls_is_not_used() {
    for case in cases() {
        let device = case.device;
        device.set_replay(true);
        for round in 0..6 {
            // Each round has other buffers, some of them at the addresses of earlier ones.
            let padding = device.allocate(Dtype::U64, 1000 * round + 1).unwrap();
            let x = case.upload(&case.rounded(&numbers(round as u32, 4096)));
            let mut y = case.poisoned(4096);
            drop(padding);
            let mut done = Ok(());
            let mut work = || done = device.add(x.view(), x.view(), y.view_mut());
            device.replay(9, &mut work).unwrap();
            done.unwrap();
            let expected: Vec<f32> = case.download(&x).iter().map(|x| 2.0 * x).collect();
            assert_eq!(bits(&case.download(&y)), bits(&expected), "{}", case.label());
        }
    }
}

#[test]
fn a_body_runs_once_and_its_error_is_its_own() {
    for device in cases().into_iter().map(|case| case.device).chain([cpu() as _]) {
        for _ in 0..3 {
            let (mut num_calls, mut result) = (0, Ok(()));
            let mut body = || {
                num_calls += 1;
                let (operation, reason) = ("test", String::new());
                result = Err(DeviceError::Unsupported { operation, reason });
            };
            Memory::replay(device, 11, &mut body).unwrap();
            assert!(num_calls == 1 && result.is_err());
        }
    }
}
