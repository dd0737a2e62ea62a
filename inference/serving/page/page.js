// The page of a served model: sends an image to the JSON API and draws the answer on a canvas.
const MAX_DRAWN_PIXELS = 16e6; // browsers on phones refuse larger canvases
const MAX_ROWS = 100;
const $ = id => document.getElementById(id);

let model; // the answer of api/model
let sent = null; // {file, answer, pixels, scale, colors} of the latest image
let request = null; // aborts the request in progress when another image is chosen
const hidden = new Set(); // names of classes that are not drawn

class RequestError extends Error {}

// Send a request and return the response, or throw a RequestError with the reason in words.
async function send(url, options = {}) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new RequestError('the server does not answer: it may have ended');
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new RequestError(body.detail || `the server answers ${response.status} ${response.statusText}`);
}

const post = (url, body, signal) => send(url, {method: 'POST', body, signal});

function showError(text) {
  $('error').textContent = text;
  $('error').hidden = !text;
}

// Yield [start, stop] of each run of foreground pixels in COCO's compressed run-length encoding.
function* decodeRuns(counts) {
  const lengths = [];
  let position = 0, start = 0;
  for (let place = 0; place < counts.length;) {
    let value = 0, shift = 0, bits;
    do { // five bits a character, lowest first; the sixth says that more follow
      bits = counts.charCodeAt(place++) - 48;
      value |= (bits & 31) << shift;
      shift += 5;
    } while (bits & 32);
    if (bits & 16 && shift < 32) value |= -1 << shift; // negative
    if (lengths.length > 2) value += lengths[lengths.length - 2]; // a difference
    lengths.push(value);
    start = position;
    position += value;
    if (lengths.length % 2 === 0 && value) yield [start, position];
  }
}

// Lay a color over the pixels of a mask; pixels is an ImageData, smaller than the mask if scale < 1.
function blendMask(pixels, mask, color, opacity, scale) {
  const [height, width] = mask.size;
  const columns = new Int32Array(width).fill(-1); // of the mask -> of the pixels
  for (let x = 0; x < pixels.width; x++) columns[Math.min(width - 1, Math.floor(x / scale))] = x;
  const blend = (x, top, bottom) => {
    const last = Math.min(pixels.height, Math.ceil(bottom * scale));
    for (let y = Math.ceil(top * scale); y < last; y++) {
      const place = 4 * (y * pixels.width + x);
      for (let c = 0; c < 3; c++) {
        pixels.data[place + c] += (color[c] - pixels.data[place + c]) * opacity;
      }
    }
  };
  for (const [start, stop] of decodeRuns(mask.counts)) {
    const lastColumn = Math.floor((stop - 1) / height);
    for (let column = Math.floor(start / height); column <= lastColumn; column++) {
      if (columns[column] < 0) continue;
      const top = Math.max(start - column * height, 0);
      blend(columns[column], top, Math.min(stop - column * height, height));
    }
  }
}

const isDetector = () => ['boxes', 'masks'].includes(model.kind);
const colorOf = name => model.palette[model.classes.indexOf(name)];
const css = ([red, green, blue]) => `rgb(${red}, ${green}, ${blue})`;
const threshold = () => Number($('threshold').value);
const percent = share => share >= 0.005 ? `${Math.round(share * 100)}%` : '< 1%';
const fontSize = (width, height) => Math.min(28, Math.max(10, Math.round(Math.min(width, height) / 32)));

// Return the part of the answer that is drawn: above the threshold, of visible classes.
function visibleAnswer() {
  const {instances, classes, segments, ...rest} = sent.answer;
  const isVisible = each => !hidden.has(each.class);
  if (classes) return {...rest, classes: classes.filter(isVisible)};
  if (segments) return {...rest, segments: segments.filter(isVisible)};
  const shown = instances.filter(each => each.score >= threshold() && isVisible(each));
  return {...rest, instances: shown};
}

// Return the color of each segment: a shade of its class color, as in inference/drawing.py.
function shadeSegments(segments) {
  const counts = new Map(), colors = new Map();
  for (const segment of segments) {
    const index = counts.get(segment.class) ?? 0;
    const shift = 0.8 * ((index * (Math.sqrt(5) - 1) / 2 + 0.5) % 1 - 0.5);
    const target = shift > 0 ? 255 : 0;
    counts.set(segment.class, index + 1);
    colors.set(segment, colorOf(segment.class).map(value =>
      Math.round(value + (target - value) * Math.abs(shift))));
  }
  return colors;
}

// Return the share of the pixels of each class of segments, the largest first.
function sumShares({height, width, segments}) {
  const shares = new Map();
  for (const {class: name, area} of segments) {
    shares.set(name, (shares.get(name) ?? 0) + area / (height * width));
  }
  const pairs = [...shares].map(([name, share]) => ({class: name, share}));
  return pairs.sort((one, other) => other.share - one.share);
}

// Black or white, whichever stands out (relative luminance, ITU-R BT.709).
const readableOn = ([red, green, blue]) =>
  0.2126 * red + 0.7152 * green + 0.0722 * blue > 110 ? 'black' : 'white';

function drawBoxes(context, instances, scale, size) {
  const [width, height] = [context.canvas.width, context.canvas.height];
  context.font = `${size}px sans-serif`;
  context.textBaseline = 'middle';
  context.lineWidth = Math.max(1, Math.floor(size / 8));
  const placed = []; // captions; one that would cover a higher score's is left out
  for (const {class: name, box} of [...instances].reverse()) {
    const [left, top, right, bottom] = box.map(value => value * scale);
    context.strokeStyle = css(colorOf(name));
    context.strokeRect(left, top, right - left, bottom - top);
  }
  for (const {class: name, score, box} of instances) {
    const [left, top] = box.map(value => value * scale);
    const text = `${name} ${score.toFixed(2)}`, high = size + 4;
    const wide = context.measureText(text).width + 4;
    const x = Math.max(0, Math.min(left, width - wide));
    const y = Math.max(0, Math.min(top - high, height - high));
    if (placed.some(each => each.x < x + wide && x < each.x + each.wide &&
        each.y < y + high && y < each.y + high)) continue;
    placed.push({x, y, wide});
    context.fillStyle = css(colorOf(name));
    context.fillRect(x, y, wide, high);
    context.fillStyle = readableOn(colorOf(name));
    context.fillText(text, x + 2, y + high / 2);
  }
}

// Return where the entries of the legend are drawn, and how high it is.
function layOutLegend(context, classes, width, size) {
  const line = Math.round(size * 1.6), entries = [];
  let x = 0, y = 0;
  context.font = `${size}px sans-serif`;
  for (const {class: name, share} of classes) {
    const text = `${name} ${percent(share)}`, wide = line + context.measureText(text).width + size;
    if (x && x + wide > width) [x, y] = [0, y + line];
    entries.push({x, y, text, color: colorOf(name)});
    x += wide;
  }
  return {entries, line, height: entries.length ? y + line : 0};
}

function drawLegend(context, legend, top, size) {
  context.font = `${size}px sans-serif`;
  context.fillStyle = 'white';
  context.fillRect(0, top, context.canvas.width, legend.height);
  context.textBaseline = 'middle';
  for (const {x, y, text, color} of legend.entries) {
    const edge = (legend.line - size) / 2;
    context.fillStyle = css(color);
    context.fillRect(x + edge, top + y + edge, size, size);
    context.fillStyle = 'black';
    context.fillText(text, x + edge + legend.line, top + y + legend.line / 2);
  }
}

function draw() {
  if (!sent) return;
  const {pixels, scale} = sent, shown = visibleAnswer(), opacity = Number($('opacity').value);
  const canvas = $('drawing'), context = canvas.getContext('2d', {willReadFrequently: true});
  const size = fontSize(pixels.width, pixels.height);
  const classes = shown.classes ?? (shown.segments ? sumShares(shown) : []);
  const legend = layOutLegend(context, classes, Math.max(320, pixels.width), size);
  canvas.width = legend.entries.length ? Math.max(320, pixels.width) : pixels.width;
  canvas.height = pixels.height + legend.height;
  canvas.classList.toggle('small', pixels.width < 600);
  const mixed = new ImageData(new Uint8ClampedArray(pixels.data), pixels.width);
  const found = shown.classes ?? shown.segments ?? shown.instances;
  for (const each of [...found].reverse()) {
    const color = sent.colors.get(each) ?? colorOf(each.class);
    if (each.mask) blendMask(mixed, each.mask, color, opacity, scale);
  }
  context.fillStyle = 'white';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.putImageData(mixed, 0, 0);
  if (shown.instances) drawBoxes(context, shown.instances, scale, size);
  drawLegend(context, legend, pixels.height, size);
  const names = [...new Set(found.map(each => each.class))].join(', ') || 'nothing';
  canvas.setAttribute('aria-label', `the image with what the model finds in it: ${names}`);
  fillTable(shown.instances);
  fillCounts();
}

function addColor(parent, name) {
  const color = document.createElement('i');
  color.className = 'color';
  color.style.background = css(colorOf(name));
  parent.append(color);
}

function fillTable(instances) {
  $('table').hidden = !instances;
  if (!instances) return;
  const all = sent.answer.instances.length;
  let caption = `${instances.length} of ${all} instances are shown`;
  if (instances.length > MAX_ROWS) caption += `; the first ${MAX_ROWS} are listed`;
  $('table').querySelector('caption').textContent = caption;
  const body = $('table').querySelector('tbody');
  body.replaceChildren(...instances.slice(0, MAX_ROWS).map(({class: name, score, box}) => {
    const row = document.createElement('tr');
    addColor(row.insertCell(), name);
    row.cells[0].append(name);
    row.insertCell().textContent = score.toFixed(2);
    row.insertCell().textContent = box.map(value => value.toFixed(0)).join(', ');
    return row;
  }));
}

// Count the instances of each class above the threshold, or the objects of panoptic segmentation, or
// show the share of the pixels of a class.
function fillCounts() {
  const values = new Map();
  const {classes, segments, instances, height, width} = sent?.answer ?? {};
  for (const each of classes ?? segments ?? instances ?? []) {
    const {class: name, share, isthing, area, score} = each;
    if (share !== undefined) values.set(name, percent(share));
    else if (isthing === false) values.set(name, percent(area / (height * width)));
    else if (isthing || score >= threshold()) values.set(name, (values.get(name) ?? 0) + 1);
  }
  for (const item of $('classes').children) {
    const value = values.get(item.dataset.name);
    item.querySelector('.count').textContent = value ?? '';
    item.classList.toggle('absent', Boolean(sent) && value === undefined);
  }
}

function fillClasses() {
  $('classes').replaceChildren(...model.classes.map(name => {
    const item = document.createElement('li'), label = document.createElement('label');
    const box = document.createElement('input'), text = document.createElement('span');
    const count = document.createElement('b');
    item.dataset.name = text.textContent = name;
    box.type = 'checkbox';
    box.checked = true;
    box.addEventListener('change', () => {
      hidden[box.checked ? 'delete' : 'add'](name);
      draw();
    });
    count.className = 'count';
    label.append(box);
    addColor(label, name);
    label.append(text, count);
    item.append(label);
    return item;
  }));
}

function showClasses(visible) {
  model.classes.forEach(name => hidden[visible ? 'delete' : 'add'](name));
  for (const box of $('classes').querySelectorAll('input')) box.checked = visible;
  draw();
}

// Return the pixels of the image as the server sees it, at most MAX_DRAWN_PIXELS of them.
async function readPixels(file, {width, height}, signal) {
  const options = {colorSpaceConversion: 'none'};
  let image = await createImageBitmap(file, options).catch(() => null);
  if (image?.width !== width || image?.height !== height) { // a format or rotation of its own
    const copy = await post('api/image', file, signal);
    image = await createImageBitmap(await copy.blob(), options);
  }
  const scale = Math.min(1, Math.sqrt(MAX_DRAWN_PIXELS / (width * height)));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.floor(width * scale));
  canvas.height = Math.max(1, Math.floor(height * scale));
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return {scale, pixels: context.getImageData(0, 0, canvas.width, canvas.height)};
}

async function predict(file) {
  request?.abort();
  request = new AbortController();
  const {signal} = request;
  sent = null;
  showError('');
  $('result').hidden = true;
  $('status').textContent = `predicting ${file.name} …`;
  fillCounts();
  try {
    const query = isDetector() ? 'masks=rle&threshold=0' : 'masks=rle';
    const answer = await (await post(`api/predict?${query}`, file, signal)).json();
    const drawn = await readPixels(file, answer, signal);
    if (signal.aborted) return;
    sent = {file, answer, colors: shadeSegments(answer.segments ?? []), ...drawn};
    $('result').hidden = false;
    draw();
    const times = Object.entries(answer.seconds).map(([name, value]) =>
      `${name} ${Math.round(value * 1000)} ms`);
    $('status').textContent = [file.name, `${answer.width} × ${answer.height}`, ...times].join(' · ');
    $('figure-image').hidden = true;
    if ($('figures').open) await drawFigure();
  } catch (error) {
    if (signal.aborted) return;
    $('status').textContent = '';
    showError(`${file.name}: ${error.message}`);
  }
}

async function drawFigure() {
  const of = sent, name = $('figure').value, image = $('figure-image');
  if (!of || !name) return;
  $('figure-status').textContent = 'drawing …';
  let text = '', blob = null;
  try {
    blob = await (await post(`api/figures/${encodeURIComponent(name)}`, of.file)).blob();
  } catch (error) {
    text = error.message;
  }
  if (of !== sent || name !== $('figure').value) return; // another one was asked for meanwhile
  $('figure-status').textContent = text;
  URL.revokeObjectURL(image.src);
  image.hidden = !blob;
  image.alt = `${name} of ${of.file.name}`;
  if (blob) image.src = URL.createObjectURL(blob);
}

function save(blob, suffix) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = `${sent.file.name.replace(/\.[^.]*$/, '')}-prediction.${suffix}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function showSettings() {
  for (const name of ['threshold', 'opacity']) {
    $(`${name}-value`).textContent = Number($(name).value).toFixed(2);
  }
}

function listen() {
  const take = files => files?.length && predict(files[0]);
  $('file').addEventListener('change', () => {
    take($('file').files);
    $('file').value = ''; // so that the same file can be chosen again
  });
  document.addEventListener('paste', event => take(event.clipboardData.files));
  for (const [name, over] of [['dragover', true], ['dragleave', false], ['drop', false]]) {
    document.addEventListener(name, event => {
      event.preventDefault();
      $('drop').classList.toggle('over', over);
      if (name === 'drop') take(event.dataTransfer.files);
    });
  }
  for (const name of ['threshold', 'opacity']) {
    $(name).addEventListener('input', () => {
      showSettings();
      requestAnimationFrame(draw);
    });
  }
  $('settings').addEventListener('submit', event => event.preventDefault());
  $('show-all').addEventListener('click', () => showClasses(true));
  $('hide-all').addEventListener('click', () => showClasses(false));
  $('save-png').addEventListener('click', () => $('drawing').toBlob(blob => save(blob, 'png')));
  $('save-json').addEventListener('click', () => {
    const text = JSON.stringify(visibleAnswer(), null, 1);
    save(new Blob([text], {type: 'application/json'}), 'json');
  });
  $('figures').addEventListener('toggle', () => $('figures').open && drawFigure());
  $('figure').addEventListener('change', drawFigure);
}

async function start() {
  try {
    model = await (await send('api/model')).json();
  } catch (error) {
    showError(error.message);
    return;
  }
  const backbone = [model.backbone, model.arch].filter(Boolean).join(' ');
  const facts = [`${model.model} on ${backbone}`, `${(model.parameters / 1e6).toFixed(1)} M parameters`,
    `weights ${model.weights}`, model.device];
  $('model').textContent = facts.join(' · ');
  $('threshold-row').hidden = !isDetector();
  $('figures').hidden = !model.figures.length;
  $('figure').replaceChildren(...model.figures.map(name => new Option(name)));
  showSettings();
  fillClasses();
  listen();
}

start();
