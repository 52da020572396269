//! Host memory as the memory of a device.

use crate::Cpu;
use crate::device::error::{DeviceError, Result};
use crate::device::memory::{Event, Memory, MemoryInfo};
use crate::device::operands::check_rows;
use crate::device::view::{Buffer, Dtype, Element, View, ViewMut};
use crate::gemm::Precision;
use half::{bf16, f16};

impl Memory for Cpu {
    fn name(&self) -> String {
        format!("CPU ({}, {} threads)", self.isa(), self.num_threads())
    }

    fn kernel_class(&self, precision: Precision) -> String {
        precision.kernel_class().to_owned()
    }

    fn check_precision(&self, _precision: Precision) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> Result<Option<MemoryInfo>> {
        Ok(None)
    }

    fn keep_failure(&self, error: DeviceError) {
        unreachable!("copies inside host memory do not fail: {error}")
    }

    fn allocate(&self, dtype: Dtype, len: usize) -> Result<Buffer> {
        Ok(Buffer::on_host(dtype, len))
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) -> Result<()> {
        assert_eq!(from.len(), to.len(), "as many elements on both sides");
        let len = from.len();
        self.copy_rows((1, len), (from, len), (to, len))
    }

    fn copy_rows(
        &self,
        shape: (usize, usize),
        from: (View<'_>, usize),
        to: (ViewMut<'_>, usize),
    ) -> Result<()> {
        check_rows(from.0.len(), shape.0, shape.1, from.1);
        check_rows(to.0.len(), shape.0, shape.1, to.1);
        match from.0.dtype() {
            Dtype::F32 => copy_slices::<f32>(shape, from, to),
            Dtype::Bf16 => copy_slices::<bf16>(shape, from, to),
            Dtype::F16 => copy_slices::<f16>(shape, from, to),
            Dtype::F64 => copy_slices::<f64>(shape, from, to),
            Dtype::U32 => copy_slices::<u32>(shape, from, to),
            Dtype::U64 => copy_slices::<u64>(shape, from, to),
        }
    }

    fn fill(&self, to: ViewMut<'_>, value: f32) -> Result<()> {
        match to.dtype() {
            Dtype::F32 => {
                let fill = |_, part: &mut [f32]| part.fill(value);
                self.for_each_part(to.into_slice()?, 1 << 14, fill);
            }
            Dtype::F64 => to.into_slice::<f64>()?.fill(f64::from(value)),
            Dtype::Bf16 => to.into_slice::<bf16>()?.fill(bf16::from_f32(value)),
            Dtype::F16 => to.into_slice::<f16>()?.fill(f16::from_f32(value)),
            dtype @ (Dtype::U32 | Dtype::U64) => {
                let reason = format!("{dtype} is not a float");
                return Err(DeviceError::Unsupported { operation: "fill", reason });
            }
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn record(&self) -> Result<Event> {
        Ok(Event(None))
    }

    fn wait(&self, _event: &Event) -> Result<()> {
        Ok(())
    }

    fn wait_on_host(&self, _event: &Event) -> Result<()> {
        Ok(())
    }

    fn seconds_between(&self, _start: &Event, _end: &Event) -> Result<Option<f64>> {
        Ok(None)
    }
}

fn copy_slices<T: Element>(
    (rows, cols): (usize, usize),
    (from, from_stride): (View<'_>, usize),
    (to, to_stride): (ViewMut<'_>, usize),
) -> Result<()> {
    let (from, to) = (from.as_slice::<T>()?, to.into_slice::<T>()?);
    for row in 0..rows {
        to[row * to_stride..][..cols].copy_from_slice(&from[row * from_stride..][..cols]);
    }
    Ok(())
}
