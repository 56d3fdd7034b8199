// A service that does in transactions what its requests say, with pg. `service.py` does the same.

const http = require("node:http");
const { Client } = require("pg");

const DATABASE = process.argv[2];

async function call(sql, handed, name, values, said) {
  if (name === "order") {
    await sql.query("INSERT INTO orders (name) VALUES ('tea')");
    return null;
  }
  if (name === "setting") {
    await sql.query("SELECT set_config($1, $2, true)", values);
    return null;
  }
  if (name === "complete") {
    values = [...values, Buffer.from(JSON.stringify(said))];
  } else if (name === "advance") {
    // An array would be taken for one of PostgreSQL's.
    values = [values[0], JSON.stringify(values[1])];
  } else if (name === "stage") {
    values = [...values.slice(0, -1), Buffer.from(values.at(-1))];
  }
  const all = [...handed, ...values];
  const places = all.map((_, index) => `$${index + 1}`).join(", ");
  const { rows } = await sql.query(`SELECT onceward.${name}(${places}) AS answer`, all);
  return rows[0].answer === "" ? null : rows[0].answer;
}

// One transaction; what its calls said, or the SQLSTATE with which one was refused.
async function transact(handed, calls, said) {
  const sql = new Client({ connectionString: DATABASE });
  await sql.connect();
  try {
    await sql.query("BEGIN");
    for (const [name, ...values] of calls) {
      const answer = await call(sql, handed, name, values, said);
      said.push([name, answer]);
      if (name === "advance" && answer === false) {
        // The rows of the step are there already.
        return await sql.query("ROLLBACK");
      }
    }
    await sql.query("COMMIT");
  } catch (error) {
    await sql.query("ROLLBACK");
    said.push(["refused", error.code]);
  } finally {
    await sql.end();
  }
}

async function handle(headers, request) {
  // It has more digits than a number of JavaScript.
  const fence = BigInt(headers["onceward-fence"]) + BigInt(request.fence ?? 0);
  const handed = [headers["onceward-operation"], headers["onceward-attempt-id"], `${fence}`];
  const said = [];
  for (const calls of request.attempts[Number(headers["onceward-attempt"] ?? 1) - 1]) {
    await transact(handed, calls, said);
  }
  return said;
}

const server = http.createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const said = await handle(request.headers, JSON.parse(Buffer.concat(parts)));
  // Whoever has completed is not asked; for others it means that a retry may run.
  response.writeHead(503).end(JSON.stringify(said));
});

server.listen(0, "127.0.0.1", () => {
  console.log(`listening on 127.0.0.1:${server.address().port}`);
});
