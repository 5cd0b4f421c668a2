//! Sheds load before memory is exhausted and the process is killed.
//!
//! From 80 % of the limit, new proxies are rejected and retry later. From 90 %, the streams of the
//! costliest identity are ended, one identity after the other, and the memory use is measured again
//! after each.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use strait_ads::budgets::Pressure;
use strait_ads::connections::Connections;
use strait_base::codes;
use strait_base::memory::MemoryLimit;

/// Interval of the checks.
const PERIOD: Duration = Duration::from_secs(1);

/// Checks the memory use until the process ends. `give_back` may take some milliseconds.
pub(super) async fn run(
    memory: MemoryLimit,
    connections: Arc<Connections>,
    give_back: impl Fn() + Clone + Send + 'static,
) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let Some(used) = memory.used() else { continue };
        if Pressure::of(used, memory.limit()) > Pressure::Low {
            // Free memory is returned first, so that it does not cause shedding. A panic in this
            // task has no other consequences.
            let _ = tokio::task::spawn_blocking(give_back.clone()).await;
        }
        look(&memory, &connections);
    }
}

fn look(memory: &MemoryLimit, connections: &Connections) {
    let Some(used) = memory.used() else { return };
    let limit = memory.limit();
    let budgets = connections.budgets();
    let now = Pressure::of(used, limit);
    let before = budgets.press(now, used);
    if now != before {
        let code = codes::MEMORY_SHORT.id;
        match now {
            Pressure::Low => info!(used, limit, "memory is no longer short"),
            _ => warn!(
                code,
                used, limit, "memory is short; new proxies are rejected and retry later"
            ),
        }
    }
    if now == Pressure::High
        && let Some((identity, usage)) = budgets.end_costliest(limit / 100)
    {
        warn!(
            code = codes::MEMORY_SHORT.id,
            used,
            limit,
            %identity,
            streams = usage.streams,
            names = usage.names,
            made_up = usage.made_up,
            bytes = usage.taken,
            "memory is almost exhausted; ending the streams of the identity that uses most"
        );
    }
}
