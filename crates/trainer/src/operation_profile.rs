//! Time of a training step by operation of its device, beside the floor of the same operations.
//!
//! The floor of a product is its time alone: the same shape, types and layout, back to back on
//! operands of its own. The floor of a copy inside the device, and of a kernel that does little
//! but read and write, is its bytes at the bandwidth of a long copy.

use crate::TrainError;
use lockstep_platform::World;
use lockstep_tensor::device::{
    Buffer, Device, Dtype, Epilogue, Matrix, MatrixMut, Operation, OperationTime, ProductShape,
    Result as DeviceResult, Transfer, View, copy_rounded, merge_times,
};
use lockstep_tensor::gemm::{Precision, Write};
use serde::Serialize;

/// Device time of a training step by operation. Field names are stable: scripts rely on them.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct OperationProfile {
    pub steps: u64,
    /// Median of the steps before the profile.
    pub step_seconds: f64,
    pub operations_seconds: f64,
    /// Rest of the measured step, in which the device waited.
    pub gap_seconds: f64,
    pub products_seconds: f64,
    pub products_floor_seconds: f64,
    /// Bytes read and written by a long copy inside the device.
    pub copy_bytes_per_second: f64,
    /// The longest first.
    pub operations: Vec<OperationRow>,
    /// Most of what separates the step from its floor, the largest first.
    pub largest_gaps: Vec<Gap>,
}

/// Time of a step beyond the floor of an operation.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct Gap {
    pub name: String,
    pub seconds: f64,
    pub reason: String,
}

impl Gap {
    /// Number of gaps in a report.
    const NUM: usize = 3;

    /// Time of an operation beyond its floor, if that is known.
    fn of(operation: &Operation, row: &OperationRow) -> Option<Self> {
        let floor = row.floor_seconds?;
        let share = (100.0 * floor / row.seconds).round();
        let reason = match operation {
            Operation::Product(_) => format!("alone it takes {share} % of this time"),
            _ => format!("moves its bytes at {share} % of a copy's bandwidth"),
        };
        Some(Self { name: row.name.clone(), seconds: row.seconds - floor, reason })
    }
}

/// One operation of a step, averaged over the profiled steps.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct OperationRow {
    pub name: String,
    pub calls: f64,
    pub seconds: f64,
    /// Of the time of all operations.
    pub share: f64,
    /// Of products.
    pub flops_per_second: Option<f64>,
    /// Of copies and memory-bound kernels: bytes read and written.
    pub bytes_per_second: Option<f64>,
    /// Seconds of the same products alone, or of the bytes at the copy bandwidth.
    pub floor_seconds: Option<f64>,
}

/// Records the operations of steps that `run_step` runs, after one unrecorded step that fills the
/// recorder's pool of events.
pub(crate) fn record(
    device: &dyn Device,
    num_steps: u64,
    mut run_step: impl FnMut() -> Result<(), TrainError>,
) -> Result<Vec<OperationTime>, TrainError> {
    let mut times = Vec::new();
    for step in 0..=num_steps {
        device.start_profile();
        let outcome = run_step();
        let of_step = device.take_profile()?;
        outcome?;
        if step > 0 {
            times.extend(of_step);
        }
    }
    Ok(merge_times(times))
}

/// Measured floor of a device.
pub(crate) struct Floor<'a> {
    device: &'a dyn Device,
    world: &'a World,
    copy_bytes_per_second: f64,
}

impl<'a> Floor<'a> {
    /// Measures the copy bandwidth.
    pub(crate) fn measure(device: &'a dyn Device, world: &'a World) -> Result<Self, TrainError> {
        const MOST_BYTES: usize = 1 << 30;
        let free = device.memory()?.map_or(MOST_BYTES, |memory| memory.free);
        let len = MOST_BYTES.min(free / 4) / Dtype::F32.size();
        let from = varied(device, Dtype::F32, len)?;
        let mut to = device.allocate(Dtype::F32, len)?;
        let mut copy = || device.copy(from.view(), to.view_mut());
        let seconds = mean_seconds(device, world, &mut copy)?;
        let bytes = 2 * len * Dtype::F32.size();
        Ok(Self { device, world, copy_bytes_per_second: bytes as f64 / seconds })
    }

    /// Bytes read and written in a second by a long copy.
    pub(crate) const fn copy_bytes_per_second(&self) -> f64 {
        self.copy_bytes_per_second
    }

    /// Seconds of one product alone.
    fn product_seconds(&self, product: &ProductShape) -> Result<f64, TrainError> {
        let ((m, n, k), device) = (product.mnk, self.device);
        let (precision, dtype) = (product.operands, Dtype::of_operands(product.operands));
        let (a, b) = (varied(device, dtype, m * k)?, varied(device, dtype, k * n)?);
        let mut c = device.allocate(product.result, m * n)?;
        let [a_transposed, b_transposed] = product.transposed;
        let (a, b) = (stored(&a, (m, k), a_transposed), stored(&b, (k, n), b_transposed));
        let (a, b) = (a.in_role(product.roles[0]), b.in_role(product.roles[1]));
        let write = if product.add { Write::Add } else { Write::Set };
        let mut multiply = || {
            let target = MatrixMut::new(c.view_mut(), m, n);
            device.product(precision, a, b, target, write, Epilogue::None)
        };
        let seconds = mean_seconds(device, self.world, &mut multiply)?;
        if precision != Precision::Fp8 {
            return Ok(seconds);
        }
        // The operands are quantised in calls of their own, which are not a part of the product.
        device.start_profile();
        (0..NUM_CALLS).try_for_each(|_| multiply())?;
        let times = device.take_profile()?;
        let products = times.iter().filter(|time| matches!(time.operation, Operation::Product(_)));
        Ok(products.map(|time| time.seconds).sum::<f64>() / f64::from(NUM_CALLS))
    }

    /// Rows of a profile of `num_steps` steps, each beside its floor.
    pub(crate) fn compare(
        &self,
        times: &[OperationTime],
        num_steps: u64,
        step_seconds: f64,
    ) -> Result<OperationProfile, TrainError> {
        let per_step = |amount: f64| amount / num_steps as f64;
        let operations_seconds = per_step(times.iter().map(|time| time.seconds).sum());
        let [mut products_seconds, mut products_floor_seconds] = [0.0; 2];
        let (mut operations, mut largest_gaps) = (Vec::new(), Vec::new());
        for time in times {
            let (seconds, calls) = (per_step(time.seconds), per_step(time.calls as f64));
            let mut row = OperationRow {
                name: time.operation.to_string(),
                calls,
                seconds,
                share: seconds / operations_seconds,
                flops_per_second: None,
                bytes_per_second: time.bytes.map(|bytes| bytes as f64 / time.seconds),
                floor_seconds: None,
            };
            match &time.operation {
                Operation::Product(product) => {
                    let floor = calls * self.product_seconds(product)?;
                    row.flops_per_second = Some(calls * product.flops() / seconds);
                    row.floor_seconds = Some(floor);
                    products_seconds += seconds;
                    products_floor_seconds += floor;
                }
                Operation::Copy(Transfer::Inside | Transfer::Rows) | Operation::Kernel(..) => {
                    let bytes = time.bytes.map(|bytes| per_step(bytes as f64));
                    row.floor_seconds = bytes.map(|bytes| bytes / self.copy_bytes_per_second);
                }
                Operation::Copy(_) => {}
            }
            largest_gaps.extend(Gap::of(&time.operation, &row));
            operations.push(row);
        }
        let gap_seconds = step_seconds - operations_seconds;
        largest_gaps.push(Gap {
            name: "between operations".to_owned(),
            seconds: gap_seconds,
            reason: "the device waits for the next launch".to_owned(),
        });
        largest_gaps.retain(|gap| gap.seconds > 0.0);
        largest_gaps.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        largest_gaps.truncate(Gap::NUM);
        Ok(OperationProfile {
            steps: num_steps,
            step_seconds,
            operations_seconds,
            gap_seconds,
            products_seconds,
            products_floor_seconds,
            copy_bytes_per_second: self.copy_bytes_per_second,
            operations,
            largest_gaps,
        })
    }
}

/// A matrix, stored as it is or as its transpose.
fn stored(buffer: &Buffer, (rows, cols): (usize, usize), is_transposed: bool) -> Matrix<'_> {
    if is_transposed {
        return Matrix::new(buffer.view(), cols, rows).t();
    }
    Matrix::new(buffer.view(), rows, cols)
}

/// Calls of a measurement.
const NUM_CALLS: u32 = 20;

/// Mean time of calls that follow each other without a pause.
fn mean_seconds(
    device: &dyn Device,
    world: &World,
    queue: &mut dyn FnMut() -> DeviceResult<()>,
) -> Result<f64, TrainError> {
    const WARM_UP_CALLS: u32 = 3;
    (0..WARM_UP_CALLS).try_for_each(|_| queue())?;
    device.synchronize()?;
    let start = world.clock().now();
    (0..NUM_CALLS).try_for_each(|_| queue())?;
    device.synchronize()?;
    Ok(world.clock().since(start).as_secs_f64() / f64::from(NUM_CALLS))
}

/// A buffer of numbers in [-1, 1) that differ as those of a model do: a product of equal numbers
/// takes less power, so a device runs it at a higher clock.
fn varied(device: &dyn Device, dtype: Dtype, len: usize) -> Result<Buffer, TrainError> {
    const NUM_DISTINCT: usize = 1 << 20;
    let number = |i: u32| (i.wrapping_mul(0x9e37_79b1) >> 8) as f32 / 8_388_608.0 - 1.0;
    let numbers: Vec<f32> = (0..len.min(NUM_DISTINCT) as u32).map(number).collect();
    let mut first = device.allocate(Dtype::F32, numbers.len())?;
    device.copy(View::of(&numbers), first.view_mut())?;
    let mut buffer = device.allocate(dtype, len)?;
    let target = buffer.view_mut().range(0..numbers.len());
    copy_rounded(device, first.view(), target)?;
    let mut done = numbers.len();
    while done < len {
        let next = done.min(len - done);
        let (from, to) = buffer.view_mut().split_at(done);
        device.copy(from.into_view().range(0..next), to.range(0..next))?;
        done += next;
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::fp8::Role;
    use lockstep_tensor::{Cpu, Isa};

    #[test]
    fn rows_have_times_of_a_step_beside_floors_that_were_measured() {
        let (cpu, world) = (Cpu::single(Isa::detect()), lockstep_platform::real());
        let floor = Floor { device: &cpu, world: &world, copy_bytes_per_second: 4e9 };
        let product = ProductShape {
            mnk: (8, 16, 32),
            operands: Precision::F32,
            roles: [Role::Activation; 2],
            result: Dtype::F32,
            transposed: [true, false],
            add: true,
            epilogue: "",
        };
        let time =
            |operation, calls, seconds, bytes| OperationTime { operation, calls, seconds, bytes };
        let times = [
            time(Operation::Product(product), 4, 6e-3, None),
            time(Operation::Copy(Transfer::Inside), 2, 2e-3, Some(4_000_000)),
            time(Operation::Copy(Transfer::ToHost), 2, 1e-3, Some(8)),
            time(Operation::Kernel("gelu", Dtype::F32), 2, 1e-3, None),
            time(Operation::Kernel("add", Dtype::F32), 2, 4e-3, Some(8_000_000)),
        ];
        let profile = floor.compare(&times, 2, 8e-3).unwrap();
        let [multiply, copy, download, gelu, add] = &profile.operations[..] else {
            panic!("five rows: {profile:?}")
        };
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12 * b.abs();
        assert!(close(profile.operations_seconds, 7e-3) && close(profile.gap_seconds, 1e-3));
        assert!(close(multiply.seconds, 3e-3) && close(multiply.calls, 2.0));
        assert!(close(multiply.share, 3.0 / 7.0), "{multiply:?}");
        assert!(close(multiply.flops_per_second.unwrap(), 2.0 * 8192.0 / 3e-3));
        assert!(multiply.floor_seconds.unwrap() > 0.0);
        assert!(close(profile.products_floor_seconds, multiply.floor_seconds.unwrap()));
        assert!(close(copy.floor_seconds.unwrap(), 2e6 / 4e9), "{copy:?}");
        assert!(close(copy.bytes_per_second.unwrap(), 4e6 / 2e-3), "{copy:?}");
        assert!(close(add.floor_seconds.unwrap(), 4e6 / 4e9), "{add:?}");
        let gaps = profile.largest_gaps.iter().map(|gap| gap.name.as_str()).collect::<Vec<_>>();
        // The product of 8 x 16 x 32 takes far less than the 1.5 ms that were recorded.
        assert_eq!((gaps.len(), gaps[0]), (3, multiply.name.as_str()), "{gaps:?}");
        let of_add = profile.largest_gaps.iter().find(|gap| gap.name == add.name).unwrap();
        assert!(close(of_add.seconds, 1e-3), "{of_add:?}");
        assert_eq!(of_add.reason, "moves its bytes at 50 % of a copy's bandwidth");
        assert_eq!((download.floor_seconds, gelu.floor_seconds), (None, None));
        // A CPU records no operations.
        assert_eq!(record(&cpu, 1, || Ok(())).unwrap(), []);
    }
}
