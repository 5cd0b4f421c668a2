//! Random exports of services.

use std::sync::Arc;

use rand::Rng;

use super::Dice;
use strait_model::{
    ClusterExports, ExportedService, IpFamily, Labels, RawPort, RawService, WorkloadKey,
};

impl Dice {
    pub(super) fn exports(&mut self) -> ClusterExports {
        let exports = self.some(|dice| {
            let port = RawPort {
                name: dice.text(),
                protocol: dice.of(&["TCP", "UDP", "SCTP"]).into(),
                app_protocol: dice.flip().then(|| dice.text()),
                number: dice.0.random(),
            };
            let service = RawService {
                headless: dice.flip(),
                ports: vec![port],
                sticky: dice.flip(),
                sticky_seconds: dice.flip().then(|| dice.0.random()),
                internal_traffic_policy: dice.flip().then(|| dice.text()),
                traffic_distribution: dice.flip().then(|| dice.text()),
                ip_families: vec![IpFamily::V6, IpFamily::V4],
            };
            let export = ExportedService {
                created: dice.0.random(),
                service: Arc::new(service),
                labels: [(dice.text(), dice.text())].into(),
                annotations: Labels::new(),
            };
            (WorkloadKey::new(&*dice.text(), dice.text()), Arc::new(export))
        });
        ClusterExports { exports, ..ClusterExports::default() }
    }
}
