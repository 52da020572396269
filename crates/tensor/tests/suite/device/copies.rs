//! Copies beside the work: values leave to pinned memory and come back with their bits while other
//! operations reuse their buffers, one by one and as repeated sections.

use super::{Case, bits, cases};
use crate::common::numbers;
use lockstep_tensor::device::{Buffer, DeviceError, Dtype, NUM_COPY_STREAMS, Result};

/// Long enough that a copy still runs when the next operations start.
const LEN: usize = 1 << 20;
const NUM_LAYERS: usize = 6;
const NUM_ROUNDS: usize = 6;

/// Values of every layer in pinned memory, and two of them on the device.
struct Layers {
    x: Buffer,
    ring: [Buffer; NUM_COPY_STREAMS],
    pinned: Vec<Buffer>,
    sum: Buffer,
}

impl Layers {
    fn new(case: Case) -> Self {
        let zeros = || case.upload(&vec![0.0; LEN]);
        let pinned = |_| case.device.allocate_pinned(case.dtype, LEN).unwrap();
        let pinned = (0..NUM_LAYERS).map(pinned).collect();
        Self { x: zeros(), ring: [zeros(), zeros()], pinned, sum: zeros() }
    }

    /// Each layer doubles its input, which is the output of the layer before.
    fn forward(&mut self, case: Case) -> Result<()> {
        let Self { x, ring, pinned, .. } = self;
        for (layer, pinned) in pinned.iter_mut().enumerate() {
            let at = layer % NUM_COPY_STREAMS;
            if layer >= NUM_COPY_STREAMS {
                case.device.wait_for_copies(at)?;
            }
            let [first, second] = ring;
            let (own, before) = if at == 0 { (first, &*second) } else { (second, &*first) };
            let input = if layer == 0 { x.view() } else { before.view() };
            case.device.add(input, input, own.view_mut())?;
            case.device.copy_async(at, own.view(), pinned.view_mut())?;
        }
        (0..NUM_COPY_STREAMS).try_for_each(|at| case.device.wait_for_copies(at))
    }

    /// Adds the values of all layers, the last first; the next ones come while one is added.
    fn backward(&mut self, case: Case) -> Result<()> {
        let Self { ring, pinned, sum, .. } = self;
        case.device.fill(sum.view_mut(), 0.0)?;
        let fetch = |layer: usize, ring: &mut [Buffer]| {
            let at = layer % NUM_COPY_STREAMS;
            case.device.copy_async(at, pinned[layer].view(), ring[at].view_mut())
        };
        fetch(NUM_LAYERS - 1, ring)?;
        for layer in (0..NUM_LAYERS).rev() {
            let at = layer % NUM_COPY_STREAMS;
            case.device.wait_for_copies(at)?;
            if layer > 0 {
                fetch(layer - 1, ring)?;
            }
            case.device.add_assign(sum.view_mut(), ring[at].view())?;
        }
        Ok(())
    }

    fn run(mut self, case: Case) -> Vec<Vec<u32>> {
        let section = |key, body: &mut dyn FnMut() -> Result<()>| {
            let mut done = Ok(());
            case.device.replay(key, &mut || done = body()).unwrap();
            done.unwrap();
        };
        let mut sums = Vec::new();
        for round in 0..NUM_ROUNDS {
            let x = case.upload(&numbers(round as u32, LEN));
            case.device.copy(x.view(), self.x.view_mut()).unwrap();
            section(21, &mut || self.forward(case));
            // What is on the device is lost in between.
            self.ring.iter_mut().for_each(|it| case.device.fill(it.view_mut(), 7.0).unwrap());
            section(22, &mut || self.backward(case));
            sums.push(bits(&case.download(&self.sum)));
        }
        sums
    }
}

#[test]
fn values_come_back_with_their_bits_with_and_without_graphs() {
    for case in cases() {
        case.device.set_replay(false);
        let single = Layers::new(case).run(case);
        for (round, found) in single.iter().enumerate() {
            let x = case.rounded(&numbers(round as u32, LEN));
            // Every layer is a power of two times the input; the sum rounds as it is added.
            let mut expected = vec![0.0; LEN];
            for layer in (0..NUM_LAYERS).rev() {
                let factor = (2 << layer) as f32;
                let add = |(sum, x): (&mut f32, &f32)| *sum += factor * x;
                expected.iter_mut().zip(&x).for_each(add);
                expected = case.rounded(&expected);
            }
            assert!(*found == bits(&expected), "{}: round {round}", case.label());
        }
        case.device.set_replay(true);
        let before = case.device.num_replays();
        assert!(Layers::new(case).run(case) == single, "{}", case.label());
        assert_eq!(case.device.take_warning(), None, "{}", case.label());
        let num_replays = case.device.num_replays() - before;
        assert!(case.is_cpu || num_replays > 4, "{}: {num_replays} replays", case.label());
    }
}

#[test]
fn pinned_memory_is_for_copies_beside_the_work_alone() {
    for case in cases().into_iter().filter(|case| !case.is_cpu) {
        let (x, mut y) = (case.upload(&[1.0; 4]), case.upload(&[0.0; 4]));
        let mut pinned = case.device.allocate_pinned(case.dtype, 4).unwrap();
        assert!(pinned.view().as_slice::<f32>().is_err(), "no slice, while copies may run");
        let refused = [
            case.device.copy(x.view(), pinned.view_mut()),
            case.device.add(pinned.view(), x.view(), y.view_mut()),
            case.device.copy_async(0, x.view(), y.view_mut()),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{refused:?}");
        }
    }
    // Empty copies are none, and memory may be released while a copy runs.
    for case in cases() {
        let x = case.upload(&vec![1.0; LEN]);
        let mut pinned = case.device.allocate_pinned(case.dtype, LEN).unwrap();
        let mut empty = case.device.allocate_pinned(Dtype::F32, 0).unwrap();
        let none = case.device.allocate(Dtype::F32, 0).unwrap();
        case.device.copy_async(0, none.view(), empty.view_mut()).unwrap();
        case.device.copy_async(1, x.view(), pinned.view_mut()).unwrap();
    }
}
