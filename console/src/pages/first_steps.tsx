/** The empty list of applications: commands that fill it. Tests execute them. */
import { may, project } from "../api/session";
import { epochal } from "../model/commands";
import { Copyable } from "../ui/parts";

const PIPELINE = `from epochal import Pipeline
from epochal.connectors import console, generator

pipeline = Pipeline("orders")
orders = pipeline.read("orders", generator.source({"customer": "noise % 1000", "amount": "noise % 90 + 10"}, rate=2000))
spent = orders.key_by("customer").aggregate("spent", orders="count(*)", total="sum(amount)")
spent.where("total > 500").write("good_customers", console.sink(rows=5))`;

export function FirstSteps() {
  const at = ["--url", location.origin];
  if (!may("author"))
    return (
      <div class="first card">
        <h2>No applications yet</h2>
        <p>An author or administrator of the project submits them. This page shows an application as soon as it is submitted.</p>
      </div>
    );
  return (
    <div class="first card">
      <h2>No applications yet</h2>
      <p>Three commands in a terminal fill this page. No other system is needed: the pipeline generates its input.</p>
      <ol>
        <li>
          <Copyable title="Write a pipeline" text={`cat > orders.py <<'END'\n${PIPELINE}\nEND`} />
        </li>
        <li>
          <Copyable title="Submit it" text={epochal(project.value, "submit", "orders.py", "--name", "orders", ...at)} />
        </li>
        <li>
          <Copyable title="Look a key up" text={epochal(project.value, "get", "orders", "spent", "42", ...at)} />
        </li>
      </ol>
      <p class="quiet">
        On the machine of the control plane, <code>epochal</code> finds the token of the administrator. Elsewhere, set{" "}
        <code>EPOCHAL_TOKEN</code>, or use <code>epochal login</code>. This page shows the application as soon as it is
        submitted.
      </p>
    </div>
  );
}
